package stream

import (
	_ "github.com/rigelbuild/compass-operator/internal/naming"
)
