package kube

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Door is a port of a pod, by its name in the container, and who may enter; nobody named means everybody.
type Door struct {
	Port string
	From map[string]string // labels of pods of the same namespace
}

// Doors are the only ways into the pods of a selector. What pods call is left open: a Postgres may be anywhere.
func Doors(meta metav1.ObjectMeta, selector map[string]string, doors ...Door) *networkingv1.NetworkPolicy {
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: meta,
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: selector}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		},
	}
	for _, d := range doors {
		rule := networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromString(d.Port)), Protocol: new(corev1.ProtocolTCP)}}}
		if d.From != nil {
			rule.From = []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: d.From}}}
		}
		policy.Spec.Ingress = append(policy.Spec.Ingress, rule)
	}
	return policy
}
