package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const sqlAccountOfToken = `select k.account_id from compass.account_tokens k where k.id = $1`

// AccountOfToken returns the account that a token speaks or spoke for. ErrNotFound where the tenant has no such token.
func (s *Store) AccountOfToken(ctx context.Context, id string) (string, error) {
	account, err := queryOne(ctx, s, pgx.RowTo[string], sqlAccountOfToken, id)
	return account, wrapf(err, "find the account of token %s", id)
}
