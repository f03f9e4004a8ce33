package schema

import (
	"fmt"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// The range of schema versions that this binary serves (expand, then contract).
const (
	// Max is the newest migration that this binary knows. A test holds it to the files.
	Max = 11
	// Min is the oldest schema that this binary can work on.
	Min = 7
)

// Fits tells whether this binary may work on a database: one that has reached Min, and whose migrations, as far as this
// binary does not know them, say that binaries of Max go on working. Its error is ErrSchema and says what to do.
func Fits(version, serves int) error {
	switch {
	case version < Min:
		return fmt.Errorf("%w: it is at version %04d and this binary needs %04d: run `compass migrate up`, "+
			"or wait until the operator has migrated", pg.ErrSchema, version, Min)
	case serves > Max:
		return fmt.Errorf("%w: version %04d no longer serves binaries older than %04d and this one is %04d: "+
			"upgrade the operator", pg.ErrSchema, version, serves, Max)
	}
	return nil
}
