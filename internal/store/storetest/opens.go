package storetest

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// Opens reports whether a server lets somebody in.
func Opens(tb testing.TB, dsn string) bool {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), dsn)
	if err != nil {
		return false
	}
	_ = conn.Close(tb.Context())
	return true
}
