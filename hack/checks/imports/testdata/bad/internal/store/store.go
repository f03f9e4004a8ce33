package store

import (
	_ "github.com/rigelbuild/compass-operator/internal/delivery" // want an adapter knows its own system alone
)
