package fabric

import (
	_ "github.com/nats-io/nats.go"
	_ "github.com/rigelbuild/compass-operator/internal/naming"
)
