// Package ledger checks docs/DECISIONS.md: a table of one-line decisions whose ids only go up, each with a record that
// exists, and append-only, so that no line which was committed changes or vanishes.
//
// It imports the standard library.
package ledger
