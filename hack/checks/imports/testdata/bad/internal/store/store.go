package store

import (
	_ "github.com/rigelbuild/compass-operator/internal/delivery" // want wall of internal/store
)
