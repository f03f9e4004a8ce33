package controllers_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// argoHealth asks the script that config/argocd gives Argo CD for a kind.
func argoHealth(t *testing.T, kind string, object map[string]any) (status, message string) {
	t.Helper()
	script, ok, err := unstructured.NestedString(objectsIn(t, "../config/argocd/argocd-cm.yaml")[0].Object,
		"data", "resource.customizations.health.compass.rigel.build_"+kind)
	if err != nil || !ok {
		t.Fatalf("no script for %s: %v", kind, err)
	}
	l := lua.NewState()
	defer l.Close()
	l.SetGlobal("obj", luaValue(l, object))
	if err := l.DoString(script); err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	said, ok := l.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("%s: the script returned %s", kind, l.Get(-1).Type())
	}
	return lua.LVAsString(said.RawGetString("status")), lua.LVAsString(said.RawGetString("message"))
}

func luaValue(l *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		table := l.NewTable()
		for k, element := range v {
			table.RawSetString(k, luaValue(l, element))
		}
		return table
	case []any:
		table := l.NewTable()
		for _, element := range v {
			table.Append(luaValue(l, element))
		}
		return table
	case string:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	}
	return lua.LNil
}

// Holds REQ-217: Argo CD says of each kind what its condition Ready says, and nothing of an object that the operator has not
// looked at since the edit.
func TestArgoHealth(t *testing.T) {
	t.Parallel()
	ready := func(status, reason, message string) string {
		return `"status":{"conditions":[{"type":"DatabaseReady","status":"False","reason":"Other","observedGeneration":2},
			{"type":"Ready","status":"` + status + `","reason":"` + reason + `","message":"` + message + `","observedGeneration":2}]}`
	}
	for name, c := range map[string]struct{ meta, rest, status, message string }{
		"new":                {"", `"kind":"new"`, "Progressing", "Waiting for the operator"},
		"no condition yet":   {"", `"status":{}`, "Progressing", "Waiting for the operator"},
		"edited since":       {`"generation":3`, ready("True", "Available", ""), "Progressing", "Waiting for the operator"},
		"ready":              {"", ready("True", "Available", ""), "Healthy", "Available"},
		"waits for another":  {"", ready("False", "WaitingForServer", "main is not ready"), "Progressing", "WaitingForServer: main is not ready"},
		"waits for you":      {"", ready("False", "WaitingForConsent", "set it"), "Degraded", "WaitingForConsent: set it"},
		"waits for a person": {"", ready("False", "WaitingForSuperuser", "run this"), "Degraded", "WaitingForSuperuser: run this"},
		"wrong":              {"", ready("False", "InvalidSpec", "no"), "Degraded", "InvalidSpec: no"},
		"cannot be told":     {"", ready("Unknown", "DatabaseUnreachable", "no answer"), "Degraded", "DatabaseUnreachable: no answer"},
		"paused":             {"", ready("Unknown", "Paused", "as asked"), "Suspended", "Paused: as asked"},
		"suspended":          {"", `"spec":{"suspend":true},` + ready("True", "Suspended", ""), "Suspended", "Suspended"},
		"suspended in vain":  {"", `"spec":{"suspend":true},` + ready("False", "InvalidSpec", "no"), "Degraded", "InvalidSpec: no"},
		"being deleted":      {`"generation":2,"deletionTimestamp":"2026-01-02T03:04:05Z"`, ready("True", "Available", ""), "Progressing", "Deleting"},
	} {
		meta := c.meta
		if meta == "" {
			meta = `"generation":2`
		}
		var object map[string]any
		if err := json.Unmarshal([]byte(`{"spec":{},"metadata":{`+meta+`},`+c.rest+`}`), &object); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, kind := range []string{"CompassServer", "CompassTenant", "DeliveryStream"} {
			if status, message := argoHealth(t, kind, object); status != c.status || message != c.message {
				t.Errorf("%s, %s: %s %q, want %s %q", kind, name, status, message, c.status, c.message)
			}
		}
	}
}

// Holds REQ-217: what is in Git and what is in the cluster agree once the operator is done, as Argo CD compares them: by what
// applying it again would change.
func TestArgoSeesNoDifference(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	desired := []client.Object{}
	for _, path := range []string{"compassserver", "compasstenant", "deliverystream"} {
		for _, u := range objectsIn(t, "../config/samples/compass_v1alpha1_"+path+".yaml") {
			u.SetNamespace(g.namespace)
			if u.GetKind() == "CompassServer" { // many tests share a Postgres
				if err := unstructured.SetNestedField(u.Object, g.database(t), "spec", "database", "name"); err != nil {
					t.Fatal(err)
				}
			}
			desired = append(desired, u)
		}
	}
	apply := func(o client.Object, opts ...client.ApplyOption) map[string]any {
		t.Helper()
		u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		applied := &unstructured.Unstructured{Object: u}
		opts = append(opts, client.FieldOwner("argocd-controller"), client.ForceOwnership)
		if err := g.api.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), opts...); err != nil {
			t.Fatal(err)
		}
		unstructured.RemoveNestedField(applied.Object, "metadata", "managedFields") // has the time of the call in it
		return applied.Object
	}
	for _, o := range desired {
		apply(o)
	}
	all := []named{aServer("main"), aTenant("acme"), aStream("main")}
	newOperator(t, g, &calls{}).settle(t, all...)
	g.mustBeReady(t, all...)
	for i, o := range desired {
		live := all[i].kind()
		g.get(t, live, all[i].name)
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(live)
		if err != nil {
			t.Fatal(err)
		}
		kind := o.GetObjectKind().GroupVersionKind().Kind
		if status, message := argoHealth(t, kind, object); status != "Healthy" {
			t.Errorf("%s: %s, %s", kind, status, message)
		}
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
		g.get(t, u, all[i].name)
		unstructured.RemoveNestedField(u.Object, "metadata", "managedFields")
		if diff := cmp.Diff(u.Object, apply(o, client.DryRunAll)); diff != "" {
			t.Errorf("%s: applying it again would change (-is +would be):\n%s", kind, diff)
		}
	}
}
