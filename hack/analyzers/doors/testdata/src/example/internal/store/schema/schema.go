// Package schema acts as the owner, in a transaction.
package schema

import (
	"context"

	"github.com/jackc/pgx/v5"
)

func act(ctx context.Context, c *pgx.Conn, role string) error {
	if _, err := c.Exec(ctx, "set local role "+role); err != nil {
		return err
	}
	_, err := c.Exec(ctx, "set role owner") // want `SET ROLE outlives`
	return err
}
