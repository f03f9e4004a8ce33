// Command chartdiff compares what two ways of installing the operator install: chartdiff HELM.yaml KUSTOMIZE.yaml. Names and
// labels may differ, because a release has its own; CRDs, rights, the admission policy and how the manager's pod runs may not.
package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: chartdiff HELM.yaml KUSTOMIZE.yaml")
		os.Exit(2)
	}
	found, err := compare(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "chartdiff:", err)
		os.Exit(2)
	}
	for _, f := range found {
		fmt.Println(f)
	}
	if len(found) > 0 {
		os.Exit(1)
	}
}

type object = map[string]any

func compare(helm, kustomize string) (found []string, err error) {
	a, err := load(helm)
	if err != nil {
		return nil, err
	}
	b, err := load(kustomize)
	if err != nil {
		return nil, err
	}
	x, y := facts(a), facts(b)
	for _, name := range slices.Sorted(maps.Keys(union(x, y))) {
		if !reflect.DeepEqual(x[name], y[name]) {
			found = append(found, fmt.Sprintf("%s differs:\n  chart:  %v\n  config: %v", name, short(x[name]), short(y[name])))
		}
	}
	if len(x) == 0 {
		found = append(found, "nothing was rendered")
	}
	return found, nil
}

func load(path string) ([]object, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var out []object
	for _, part := range bytes.Split(text, []byte("\n---")) {
		var o object
		if err := yaml.Unmarshal(part, &o); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if len(o) > 0 {
			out = append(out, o)
		}
	}
	return out, nil
}

// facts are what must agree, by name.
func facts(objects []object) map[string]any {
	out := map[string]any{}
	for _, o := range objects {
		name := at(o, "metadata", "name")
		switch kind := o["kind"]; kind {
		case "CustomResourceDefinition":
			out[fmt.Sprint("CRD ", name)] = o["spec"]
		case "ValidatingAdmissionPolicy":
			out["admission policy"] = o["spec"]
		case "ValidatingAdmissionPolicyBinding":
			out["what the admission policy does"] = at(o, "spec", "validationActions")
		case "ClusterRole", "Role":
			role := strings.TrimPrefix(fmt.Sprint(name), "compass-operator")
			role = strings.TrimPrefix(strings.TrimPrefix(role, "-"), "compass-")
			out[fmt.Sprint(kind, " ", role)] = normal(o["rules"])
		case "Deployment":
			pod := at(o, "spec", "template", "spec")
			for _, field := range []string{"securityContext", "volumes", "terminationGracePeriodSeconds"} {
				out["pod "+field] = at(pod, field)
			}
			containers, _ := at(pod, "containers").([]any)
			for _, c := range containers {
				for _, field := range []string{"securityContext", "livenessProbe", "readinessProbe", "resources", "ports", "command", "volumeMounts"} {
					out[fmt.Sprint("container ", at(c, "name"), " ", field)] = at(c, field)
				}
			}
		}
	}
	return out
}

func at(v any, path ...string) any {
	for _, key := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

// normal makes lists of rules comparable whatever their order.
func normal(rules any) []string {
	list, _ := rules.([]any)
	var out []string
	for _, rule := range list {
		text, _ := yaml.Marshal(rule) // it came from YAML
		out = append(out, string(text))
	}
	slices.Sort(out)
	return out
}

func union(a, b map[string]any) map[string]any {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

func short(v any) string {
	s := fmt.Sprint(v)
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}
