package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// platformQuery is the door to the platform's functions (runner_…), which belong to no tenant: one statement with the app
// right and no scope, so row-level security shows it no tenant's row whatever it says.
func platformQuery[T any](ctx context.Context, s *Store, databaseID int, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	db, err := s.database(ctx, databaseID)
	if err != nil {
		return nil, err
	}
	return collect(ctx, db.app, &pgx.Batch{}, scan, sql, args)
}
