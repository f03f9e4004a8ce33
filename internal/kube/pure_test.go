package kube

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// Holds REQ-210: what is as it should be is recognised, whatever the API server and others have added.
func TestCovers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reason     string
		have, want string
		covered    bool
	}{
		"equal":              {"", `{a: 1}`, `{a: 1}`, true},
		"defaults beside":    {"the API server fills in", `{a: 1, b: {c: 2}}`, `{a: 1}`, true},
		"another value":      {"", `{a: 2}`, `{a: 1}`, false},
		"absent":             {"", `{}`, `{a: 1}`, false},
		"absent and empty":   {"an empty map may be dropped", `{}`, `{a: {}, b: []}`, true},
		"nested":             {"", `{a: {b: {c: 1, d: 2}}}`, `{a: {b: {c: 1}}}`, true},
		"list elements":      {"a container gets defaults too", `{a: [{n: x, d: 1}, {n: y}]}`, `{a: [{n: x}, {n: y}]}`, true},
		"longer list":        {"nobody else adds to a list of ours", `{a: [1, 2]}`, `{a: [1]}`, false},
		"another order":      {"", `{a: [2, 1]}`, `{a: [1, 2]}`, false},
		"false is not gone":  {"", `{}`, `{a: false}`, false},
		"map where a scalar": {"", `{a: {b: 1}}`, `{a: 1}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var have, want any
			if err := yaml.Unmarshal([]byte(c.have), &have); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(c.want), &want); err != nil {
				t.Fatal(err)
			}
			if got := covers(have, want); got != c.covered {
				t.Errorf("covers(%s, %s) = %v, want %v (%s)", c.have, c.want, got, c.covered, c.reason)
			}
		})
	}
}

func TestCompassFor(t *testing.T) {
	t.Parallel()
	own := Images{Compass: "registry.example:5000/compass:1.2", PullPolicy: corev1.PullIfNotPresent}
	for name, c := range map[string]struct {
		spec  v1alpha1.ImageSpec
		image string
		pull  corev1.PullPolicy
	}{
		"own":        {v1alpha1.ImageSpec{}, "registry.example:5000/compass:1.2", corev1.PullIfNotPresent},
		"tag":        {v1alpha1.ImageSpec{Tag: "1.3"}, "registry.example:5000/compass:1.3", corev1.PullIfNotPresent},
		"repository": {v1alpha1.ImageSpec{Repository: "other:1/c", PullPolicy: corev1.PullAlways}, "other:1/c:1.2", corev1.PullAlways},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if image, pull := own.CompassFor(c.spec); image != c.image || pull != c.pull {
				t.Errorf("%s %s, want %s %s", image, pull, c.image, c.pull)
			}
		})
	}
	if image, _ := (Images{Compass: "registry.example:5000/compass"}).CompassFor(v1alpha1.ImageSpec{}); image != "registry.example:5000/compass" {
		t.Errorf("without a tag: %s", image)
	}
}
