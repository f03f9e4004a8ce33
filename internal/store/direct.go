package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// directConn opens one connection to the server itself, as the system role: what holds a session for long, the delivery
// worker's lease, must not stand in a pooler's queue (F5). It refuses a pooler. The caller closes it.
func (s *Store) directConn(ctx context.Context, databaseID int) (*pgx.Conn, error) {
	db, err := s.database(ctx, databaseID)
	if err != nil {
		return nil, err
	}
	if db.direct == "" {
		return nil, fmt.Errorf("this process has no direct connection to database %d", databaseID)
	}
	config, err := pgx.ParseConfig(db.direct)
	if err != nil {
		return nil, errors.New("the direct DSN cannot be read") // the cause would quote it
	}
	if config.ConnectTimeout == 0 || config.ConnectTimeout > connectTimeout {
		config.ConnectTimeout = connectTimeout
	}
	if databaseID != 0 {
		distrust(config)
	}
	conn, err := pg.ConnectDirect(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to database %d: %w", databaseID, err)
	}
	if err := s.vet(ctx, conn, rightSystem); err != nil {
		_ = conn.Close(ctx)
		return nil, fmt.Errorf("connect to database %d: %w", databaseID, err)
	}
	return conn, nil
}
