package hub

import (
	_ "github.com/rigelbuild/compass-operator/internal/wrap" // want sigs.k8s.io/controller-runtime through: the data plane runs without Kubernetes; wall of internal/hub
)
