// Package store has doors, in this file, and tries to go around them, in the others.
package store

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type Store struct{ databases map[int]*database }

type database struct{ app *pool }

type scope struct{}

func (s *Store) enter() *scope { return nil }

type pool struct{ open *pgxpool.Pool }

const sqlScope = `select set_config('compass.tenant_id', $1, true), set_config('statement_timeout', $2, true)`

func (s *Store) exec(ctx context.Context, sql string, args ...any) error {
	_, err := s.databases[0].app.open.Exec(ctx, sql, args...)
	return err
}

func (s *Store) do(ctx context.Context, fill func(*pgx.Batch)) error { return nil }

func (s *Store) inTenantTx(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	return nil
}
