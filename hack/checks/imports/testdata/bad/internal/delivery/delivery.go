package delivery

import (
	_ "time"
)
