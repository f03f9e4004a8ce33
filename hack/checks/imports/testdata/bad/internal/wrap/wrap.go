package wrap

import (
	_ "sigs.k8s.io/controller-runtime"
)
