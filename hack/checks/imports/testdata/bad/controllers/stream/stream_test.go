package stream_test

import (
	_ "github.com/rigelbuild/compass-operator/controllers/tenant" // want kinds meet through status and watches, never each other's code
)
