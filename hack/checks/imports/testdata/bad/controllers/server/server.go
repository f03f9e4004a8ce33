package server

import (
	_ "github.com/rigelbuild/compass-operator/controllers/stream" // want kinds meet through status and watches, never each other's code
	_ "github.com/rigelbuild/compass-operator/internal/delivery"  // want the operator does nothing per message
)
