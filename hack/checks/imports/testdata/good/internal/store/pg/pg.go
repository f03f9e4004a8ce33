package pg

import (
	_ "github.com/jackc/pgx/v5"
)
