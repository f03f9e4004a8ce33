package config

import (
	_ "sigs.k8s.io/yaml"
)
