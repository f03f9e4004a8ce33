package controllers_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// Lessons 14 and 29: looking at an object changes nothing of its spec, and a newer operator changes no byte of any credential.
//
// Holds REQ-221: it restarts what runs its image, because of the image alone, and NATS not at all. Of the same image, it
// writes nothing.
func TestLessons14And29NothingIsRewritten(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	server, acme, stream := g.newServer(t, "main"), g.newTenant(t, "acme", "main", func(o *v1alpha1.CompassTenant) {
		o.Spec.NATS.EventTap, o.Spec.SQLAccess.Enabled = true, true
	}), g.newStream(t, "main", "main")
	all := []named{server, acme, stream}
	specs := func() string {
		t.Helper()
		out := ""
		for _, o := range all {
			obj := o.kind()
			g.get(t, obj, o.name)
			text, err := json.Marshal(obj)
			if err != nil {
				t.Fatal(err)
			}
			var parts struct {
				Spec json.RawMessage `json:"spec"`
			}
			if err := json.Unmarshal(text, &parts); err != nil {
				t.Fatal(err)
			}
			out += string(parts.Spec) + "\n"
		}
		return out
	}
	before := specs()
	newOperator(t, g, &calls{}).settle(t, all...)
	old := newOperator(t, g, &calls{})
	old.settle(t, all...)
	g.mustBeReady(t, all...)
	if after := specs(); after != before {
		t.Errorf("specs were\n%sand are\n%s", before, after)
	}
	held, templates := g.credentials(t), g.templates(t)
	again := &calls{}
	newOperator(t, g, again).settle(t, all...)
	if len(again.writes) > 0 {
		t.Errorf("another process of the same version wrote %v", again.writes)
	}
	newOperatorOf(t, g, &calls{}, "next").settle(t, all...)
	g.mustBeReady(t, all...)
	for name, data := range g.credentials(t) {
		if !sameData(held[name], data) {
			t.Errorf("Secret %s changed", name)
		}
	}
	if len(held) < 12 {
		t.Errorf("only %d Secrets were compared", len(held))
	}
	want, restarted := map[string]string{}, map[string]bool{}
	for name, template := range templates {
		want[name] = strings.ReplaceAll(template, "localhost/compass:dev", "localhost/compass:next")
		restarted[name] = want[name] != template
	}
	if diff := cmp.Diff(want, g.templates(t)); diff != "" {
		t.Errorf("pods of a newer operator differ in more, or less, than the image:\n%s", diff)
	}
	if diff := cmp.Diff(map[string]bool{"main-server": true, "main-compass-delivery": true, "main-nats": false}, restarted); diff != "" {
		t.Errorf("what a newer operator restarts (-want +got):\n%s", diff)
	}
}

// templates is what the pods of each Deployment and StatefulSet are made from.
func (g *ground) templates(t *testing.T) map[string]string {
	t.Helper()
	deployments, sets, out := &appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, map[string]string{}
	if err := errors.Join(g.api.List(t.Context(), deployments, client.InNamespace(g.namespace)),
		g.api.List(t.Context(), sets, client.InNamespace(g.namespace))); err != nil {
		t.Fatal(err)
	}
	add := func(name string, template corev1.PodTemplateSpec) {
		text, err := json.MarshalIndent(template, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(text)
	}
	for _, d := range deployments.Items {
		add(d.Name, d.Spec.Template)
	}
	for _, s := range sets.Items {
		add(s.Name, s.Spec.Template)
	}
	return out
}

func (g *ground) credentials(t *testing.T) map[string]map[string][]byte {
	t.Helper()
	list := &corev1.SecretList{}
	if err := g.api.List(t.Context(), list, client.InNamespace(g.namespace)); err != nil {
		t.Fatal(err)
	}
	out := map[string]map[string][]byte{}
	for _, s := range list.Items {
		out[s.Name] = s.Data
	}
	return out
}
