package delivery

import (
	_ "github.com/rigelbuild/compass-operator/internal/fabric"
	_ "github.com/rigelbuild/compass-operator/internal/store/pg"
)
