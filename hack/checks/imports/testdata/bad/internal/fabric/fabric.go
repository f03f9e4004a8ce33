package fabric

import (
	_ "github.com/rigelbuild/compass-operator/internal/store" // want wall of internal/fabric
)
