package comms

import (
	_ "github.com/nats-io/nats.go"                          // want NATS lives in internal/fabric alone
	_ "github.com/rigelbuild/compass-operator/api/v1alpha1" // want the data plane knows nothing of the operator; wall of internal/comms
	_ "k8s.io/client-go/kubernetes"                         // want the data plane runs without Kubernetes
)
