package v1alpha1

import (
	_ "k8s.io/api/core/v1"
	_ "k8s.io/apimachinery/pkg/runtime"
)
