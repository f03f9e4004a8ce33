package v1alpha1

import (
	_ "github.com/rigelbuild/compass-operator/internal/naming" // want the API types take only apimachinery and Kubernetes' own types; wall of api/v1alpha1
)
