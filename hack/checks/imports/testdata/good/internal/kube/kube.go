package kube

import (
	_ "github.com/rigelbuild/compass-operator/api/v1alpha1"
	_ "sigs.k8s.io/controller-runtime"
)
