package migrations

import "embed"

// FS holds the files NNNN_name.sql.
//
//go:embed *.sql
var FS embed.FS
