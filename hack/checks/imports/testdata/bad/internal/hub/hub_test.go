package hub

import (
	_ "github.com/jackc/pgx/v5" // want pgx lives in internal/store alone
)
