package server

import (
	_ "github.com/rigelbuild/compass-operator/internal/fabric"
	_ "github.com/rigelbuild/compass-operator/internal/kube"
)
