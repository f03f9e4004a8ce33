package fabric

import (
	_ "github.com/rigelbuild/compass-operator/internal/store" // want an adapter knows its own system alone
)
