package naming

import (
	_ "github.com/google/go-cmp/cmp"
)
