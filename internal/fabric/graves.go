package fabric

import (
	"context"
	"errors"
	"fmt"
)

// Tombstone remembers an account that was deleted. A server that slept meanwhile brings its copy back, and the others take
// it from there, with every user it had (measured); so whoever deletes accounts keeps tombstones and looks.
type Tombstone struct {
	Account string // public key
	Name    string
}

// Tombstone is that of the account.
func (a Account) Tombstone() Tombstone { return Tombstone{Account: a.Public, Name: a.Name} }

// Grave is what was found where an account had been deleted.
type Grave struct {
	Tombstone
	Answered int  // servers that answered
	Risen    bool // a copy had come back; it was locked out and deleted again
}

// BurySpec says how to delete again. A tombstone may be forgotten when Grave.Answered servers are all there are and the
// account had not risen: then no copy is left that could come back.
type BurySpec struct {
	Signer  Seed
	Owner   string
	Servers int // how many must answer; 0: as many as do, which takes two seconds for each tombstone
}

// Bury looks for deleted accounts and deletes again what has come back; what does not carry our mark is left alone. It
// reads once for each tombstone and writes nothing where all is quiet. Every tombstone is looked at, whatever the others
// said; errors are joined.
func (a *Accounts) Bury(ctx context.Context, spec BurySpec, stones []Tombstone) ([]Grave, error) {
	var errs []error
	graves := make([]Grave, 0, len(stones))
	for _, s := range stones {
		g, err := a.bury(ctx, spec, s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		graves = append(graves, g)
	}
	return graves, errors.Join(errs...)
}

func (a *Accounts) bury(ctx context.Context, spec BurySpec, s Tombstone) (Grave, error) {
	w := AccountWrite{Account: dead(s, spec.Owner), Signer: spec.Signer, Owner: spec.Owner, Servers: spec.Servers}
	seen, err := a.Observe(ctx, w)
	g := Grave{Tombstone: s, Answered: seen.Answered}
	if err != nil || seen.Copies == 0 || seen.Copies == seen.Foreign {
		return g, err
	}
	g.Risen = true
	if err := a.Remove(ctx, w); err != nil {
		return g, fmt.Errorf("bury again: %w", err)
	}
	return g, nil
}

// dead is an account without a key that could sign a user: what is locked, pushed over a copy that came back, and deleted.
func dead(s Tombstone, owner string) Account {
	return Account{Name: s.Name, Public: s.Account, claims: bareClaims(s.Name, s.Account, owner)}
}
