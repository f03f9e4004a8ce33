package controllers_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// objectsIn reads the objects of a YAML file.
func objectsIn(t *testing.T, path string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []*unstructured.Unstructured
	for _, part := range bytes.Split(text, []byte("\n---\n")) {
		u := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(part, &u.Object); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, u)
	}
	return out
}

// Holds REQ-202, REQ-215: each field of each kind has an example that the API server takes as it is written.
func TestExamples(t *testing.T) {
	t.Parallel()
	c := client.WithFieldValidation(newClient(t), metav1.FieldValidationStrict)
	namespace := apiNamespace(t, c)
	shown := map[string]map[string]bool{}
	files, err := filepath.Glob("../config/samples/fields/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	samples, _ := filepath.Glob("../config/samples/compass_*.yaml")
	for _, path := range append(files, samples...) {
		for _, u := range objectsIn(t, path) {
			spec, _, _ := unstructured.NestedMap(u.Object, "spec")
			if shown[u.GetKind()] == nil {
				shown[u.GetKind()] = map[string]bool{}
			}
			leaves("spec", spec, shown[u.GetKind()])
			u.SetNamespace(namespace)
			if err := c.Create(t.Context(), u); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
	}
	for kind, plural := range map[string]string{"CompassServer": "compassservers", "CompassTenant": "compasstenants", "DeliveryStream": "deliverystreams"} {
		crd := objectsIn(t, "../config/crd/bases/compass.rigel.build_"+plural+".yaml")[0]
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		version, _ := versions[0].(map[string]any)
		spec, _, err := unstructured.NestedMap(version, "schema", "openAPIV3Schema", "properties", "spec")
		if err != nil || len(spec) == 0 {
			t.Fatalf("%s has no schema: %v", kind, err)
		}
		for _, path := range fields("spec", spec) {
			if !shown[kind][path] {
				t.Errorf("%s: no example shows %s", kind, path)
			}
		}
	}
}

// whole are fields of Kubernetes' own making: an example shows one, not each of its parts.
var whole = []string{"resources", "selector", "affinity", "securityContext", "labels", "annotations", "nodeSelector"}

// leaves notes the paths of an example.
func leaves(path string, value any, into map[string]bool) {
	into[path] = true
	if m, ok := value.(map[string]any); ok {
		for key, v := range m {
			leaves(path+"."+key, v, into)
		}
	}
}

// fields are the paths of a schema, as deep as they are ours. How a pod runs is shown once for all pods.
func fields(path string, schema map[string]any) []string {
	properties, _ := schema["properties"].(map[string]any)
	name := path[strings.LastIndexByte(path, '.')+1:]
	pod := name == "pod" && path != "spec.server.pod"
	if len(properties) == 0 || slices.Contains(whole, name) || pod {
		return []string{path}
	}
	var out []string
	for key, p := range properties {
		if sub, ok := p.(map[string]any); ok {
			out = append(out, fields(path+"."+key, sub)...)
		}
	}
	return out
}
