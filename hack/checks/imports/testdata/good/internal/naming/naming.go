package naming

import (
	_ "strings"
)
