package fabricate

import (
	_ "github.com/nats-io/nats.go" // want NATS lives in internal/fabric alone
)
