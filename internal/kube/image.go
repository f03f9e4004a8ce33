package kube

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// Images are the container images that the operator was installed with, as repository:tag.
type Images struct {
	Compass    string
	NATS       string
	PullPolicy corev1.PullPolicy
}

// CompassFor is the image of Servers and workers: what the spec leaves open is the operator's own.
func (i Images) CompassFor(spec v1alpha1.ImageSpec) (string, corev1.PullPolicy) {
	repository, tag := splitImage(i.Compass)
	if spec.Repository != "" {
		repository = spec.Repository
	}
	if spec.Tag != "" {
		tag = spec.Tag
	}
	policy := i.PullPolicy
	if spec.PullPolicy != "" {
		policy = spec.PullPolicy
	}
	if tag == "" {
		return repository, policy
	}
	return repository + ":" + tag, policy
}

// splitImage: a colon before the last slash belongs to the registry's port.
func splitImage(image string) (repository, tag string) {
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		return image[:i], image[i+1:]
	}
	return image, ""
}
