package controllers_test

import (
	"os"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// admit installs the admission policy of config/ for one namespace: others of this process have theirs without it.
func (g *ground) admit(t *testing.T) {
	t.Helper()
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	for path, obj := range map[string]client.Object{"policy.yaml": policy, "binding.yaml": binding} {
		text, err := os.ReadFile("../config/admission/" + path)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(text, obj); err != nil {
			t.Fatal(err)
		}
		obj.SetName(g.namespace)
	}
	binding.Spec.PolicyName = policy.Name
	binding.Spec.MatchResources = &admissionv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: g.namespace}},
	}
	g.create(t, policy)
	g.create(t, binding)
}

// deployment is one with the labels of a component of ours.
func (g *ground) deployment(name, component string, edit func(*appsv1.Deployment)) *appsv1.Deployment {
	labels := map[string]string{naming.LabelComponent: component, naming.LabelStream: name}
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "x", Image: "x:1"}}},
			},
		},
	}
	if edit != nil {
		edit(d)
	}
	return d
}

// Holds REQ-209, layer 3, and REQ-215: the API server refuses what would make a worker two, whichever way it is asked, says
// what to do instead, and lets everything else be.
func TestOneWriterPolicy(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	g.admit(t)
	two := func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(2)) }
	eventually(t, "the policy is in force", func() bool {
		d := g.deployment("probe", naming.ComponentDelivery, two)
		err := g.api.Create(t.Context(), d)
		if err == nil {
			g.delete(t, d, d.Name)
		}
		return apierrors.IsForbidden(err)
	})
	worker := g.deployment("main-compass-delivery", naming.ComponentDelivery, nil)
	g.create(t, worker)
	g.create(t, g.deployment("pizza-delivery", "pizza-delivery", two))
	g.create(t, g.deployment("main-server", naming.ComponentServer, two))
	foreign := g.deployment("unlabelled", "", func(d *appsv1.Deployment) {
		two(d)
		labels := map[string]string{"app": "x"}
		d.Labels, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels = labels, labels, labels
	})
	g.create(t, foreign)

	merge := func(obj client.Object, patch string, opts ...client.PatchOption) error {
		obj.SetNamespace(g.namespace)
		return g.api.Patch(t.Context(), obj, client.RawPatch(types.MergePatchType, []byte(patch)), opts...)
	}
	named := func(name string) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}}
	}
	scale := func(name string, n int32) error {
		d := named(name)
		d.Namespace = g.namespace
		s := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name}, Spec: autoscalingv1.ScaleSpec{Replicas: n}}
		return g.api.SubResource("scale").Update(t.Context(), d, client.WithSubResourceBody(s))
	}
	for name, c := range map[string]struct {
		err  error
		says string // of the refusal; empty: it passes
	}{
		"a patch of replicas":           {merge(named(worker.Name), `{"spec": {"replicas": 2}}`), "has exactly one worker"},
		"a scale":                       {scale(worker.Name, 3), "has exactly one worker"},
		"a scale of a Server":           {scale("main-server", 3), ""},
		"a scale of somebody else's":    {scale("pizza-delivery", 3), ""},
		"a scale without our labels":    {scale("unlabelled", 3), ""},
		"a label taken off, and scaled": {merge(named(worker.Name), `{"metadata": {"labels": null}, "spec": {"replicas": 2}}`), "has exactly one worker"},
		"a rolling update":              {merge(named(worker.Name), `{"spec": {"strategy": {"type": "RollingUpdate"}}}`), "is replaced, never rolled"},
		"a suspension":                  {merge(named(worker.Name), `{"spec": {"replicas": 0}}`), ""},
		"a scale to one":                {scale(worker.Name, 1), ""},
		"another image":                 {merge(named(worker.Name), `{"spec": {"template": {"metadata": {"annotations": {"a": "b"}}}}}`), ""},
	} {
		if refused := apierrors.IsForbidden(c.err); refused != (c.says != "") || refused && !strings.Contains(c.err.Error(), c.says) || !refused && c.err != nil {
			t.Errorf("%s: %v; want %q", name, c.err, c.says)
		}
	}
	if g.get(t, worker, worker.Name); *worker.Spec.Replicas != 1 {
		t.Errorf("%d replicas", *worker.Spec.Replicas)
	}
}
