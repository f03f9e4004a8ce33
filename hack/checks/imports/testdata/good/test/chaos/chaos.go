package chaos

import (
	_ "github.com/jackc/pgx/v5"
	_ "github.com/nats-io/nats.go"
)
