package pg

import "github.com/jackc/pgx/v5"

// Ident quotes an identifier for a statement that takes no parameters. Names longer than 63 bytes or with a NUL must be
// refused before: Postgres cuts the one and pgx drops the other, so two names could become one.
func Ident(name ...string) string { return pgx.Identifier(name).Sanitize() }
