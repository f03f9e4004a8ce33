package server

import (
	_ "github.com/rigelbuild/compass-operator/controllers/stream" // want kinds meet through status and watches, never each other's code; wall of controllers/server
	_ "github.com/rigelbuild/compass-operator/internal/delivery"  // want wall of controllers/server
)
