package tenant

import (
	_ "github.com/rigelbuild/compass-operator/controllers/server" // want kinds meet through status and watches, never each other's code; wall of controllers/tenant
)
