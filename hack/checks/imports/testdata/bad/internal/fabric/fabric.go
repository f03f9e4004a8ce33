package fabric

import (
	_ "github.com/nats-io/jsm.go"                             // want jsm.go is linked by the module of internal/fabric/streambackup alone
	_ "github.com/rigelbuild/compass-operator/internal/store" // want wall of internal/fabric
)
