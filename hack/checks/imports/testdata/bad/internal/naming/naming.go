package naming

import (
	_ "github.com/google/uuid" // want names and faults take only the standard library
)
