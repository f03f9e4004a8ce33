package kube

import (
	"encoding/json"
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// Override changes a pod as the user asks. Labels, annotations and variables of ours stay: selectors, restarts and the
// process depend on them.
func Override(pod corev1.PodTemplateSpec, o v1alpha1.PodOverrides) corev1.PodTemplateSpec {
	pod.Labels = Merge(o.Labels, pod.Labels)
	pod.Annotations = Merge(o.Annotations, pod.Annotations)
	pod.Spec.NodeSelector = o.NodeSelector
	pod.Spec.Affinity = o.Affinity
	pod.Spec.PriorityClassName = o.PriorityClassName
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, o.Tolerations...)
	if o.TopologySpreadConstraints != nil {
		pod.Spec.TopologySpreadConstraints = o.TopologySpreadConstraints
	}
	pod.Spec.SecurityContext = overlay(pod.Spec.SecurityContext, o.SecurityContext)
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.Env = append(c.Env, without(o.Env, c.Env)...)
	}
	return pod
}

// without leaves out variables of a name that is taken.
func without(env, taken []corev1.EnvVar) []corev1.EnvVar {
	names := map[string]bool{}
	for _, e := range taken {
		names[e.Name] = true
	}
	var out []corev1.EnvVar
	for _, e := range env {
		if !names[e.Name] {
			out = append(out, e)
		}
	}
	return out
}

// overlay sets the fields that are set in over.
func overlay(base, over *corev1.PodSecurityContext) *corev1.PodSecurityContext {
	if over == nil {
		return base
	}
	fields, set := map[string]any{}, map[string]any{}
	for value, into := range map[*corev1.PodSecurityContext]*map[string]any{base: &fields, over: &set} {
		text, err := json.Marshal(value)
		if err != nil || json.Unmarshal(text, into) != nil {
			return over // a struct of the API that is no JSON does not exist
		}
	}
	maps.Copy(fields, set)
	out := &corev1.PodSecurityContext{}
	text, err := json.Marshal(fields)
	if err != nil || json.Unmarshal(text, out) != nil {
		return over
	}
	return out
}
