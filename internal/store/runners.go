package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// What becomes of an enrolment, besides ErrNotFound for a token that nobody issued.
var (
	// ErrTokenStolen: the token was bound to another key before. It is disabled from now on: somebody should look (R4).
	ErrTokenStolen = errors.New("enrolment token was used with another key")
	// ErrTokenDisabled: the token was shown with two keys at some time.
	ErrTokenDisabled = errors.New("enrolment token is disabled: issue a new one")
)

const (
	sqlIssueRunnerToken = `select true from compass.runner_issue_token($1, $2)`
	sqlEnrollRunner     = `select e.outcome, coalesce(e.runner_id, ''), coalesce(e.fleet, '') from compass.runner_enroll($1, $2, $3) e`
	sqlFindRunner       = `select f.fleet, f.public_key, f.incarnation from compass.runner_find($1) f`
	sqlHelloRunner      = `select compass.runner_hello($1, $2)`
	// sqlLeaseRunner brings the incarnation to a database other than 0, where the Runner itself is not known.
	sqlLeaseRunner = `select compass.runner_lease($1, $2, $3, $4)`
	// What the lease was before is read in the statement's snapshot, which does not see what the function writes.
	sqlRenewRunner = `
select compass.runner_renew($1, $2, $3, $4),
       exists (select from compass.runner_leases l where l.runner_id = $1 and l.expires_at <= clock_timestamp())`
)

// IssueRunnerToken stores the hash of a new enrolment token of a fleet; the token itself is shown once and not kept.
func (s *Store) IssueRunnerToken(ctx context.Context, hash [32]byte, fleet string) error {
	_, err := platformQuery(ctx, s, 0, pgx.RowTo[bool], sqlIssueRunnerToken, hash[:], fleet)
	return wrapf(err, "issue Runner token of fleet %s", fleet)
}

// Enrolment asks to bind a token to a Runner's key.
type Enrolment struct {
	TokenHash [32]byte
	PublicKey string
	ID        string // for a key that is new
}

// EnrollRunner binds the token to the first key that shows it, and returns who the Runner is. The same key again gets the
// same answer, because an answer may be lost. ErrNotFound: no such token. ErrTokenStolen and ErrTokenDisabled refuse it.
func (s *Store) EnrollRunner(ctx context.Context, e Enrolment) (Runner, error) {
	r := Runner{PublicKey: e.PublicKey}
	outcome, err := only(platformQuery(ctx, s, 0, func(row pgx.CollectableRow) (outcome string, err error) {
		err = row.Scan(&outcome, &r.ID, &r.Fleet)
		return outcome, err
	}, sqlEnrollRunner, e.TokenHash[:], e.PublicKey, e.ID))
	if err == nil {
		err = enrolmentError(outcome)
	}
	if err != nil {
		return Runner{}, wrapf(err, "enroll Runner")
	}
	return r, nil
}

func enrolmentError(outcome string) error {
	switch outcome {
	case "enrolled":
		return nil
	case "unknown":
		return ErrNotFound
	case "stolen":
		return ErrTokenStolen
	case "disabled":
		return ErrTokenDisabled
	}
	return fmt.Errorf("unknown outcome %q", outcome)
}

// FindRunner reads an enrolled Runner; ErrNotFound.
func (s *Store) FindRunner(ctx context.Context, id string) (Runner, error) {
	r, err := only(platformQuery(ctx, s, 0, func(row pgx.CollectableRow) (Runner, error) {
		r := Runner{ID: id}
		err := row.Scan(&r.Fleet, &r.PublicKey, &r.Incarnation)
		return r, err
	}, sqlFindRunner, id))
	return r, wrapf(err, "find Runner %s", id)
}

// HelloRunner begins a new incarnation of the Runner and leases it, in every database: each judges leases by its own clock
// and picks Runners by its own rows. Sessions of an older incarnation are over from now on; StaleSessions lists them. Only
// database 0 must answer: another that is away hears of the incarnation by a heartbeat. ErrNotFound: not enrolled.
func (s *Store) HelloRunner(ctx context.Context, id string, lease time.Duration) (incarnation int64, err error) {
	incarnation, err = only(platformQuery(ctx, s, 0, pgx.RowTo[int64], sqlHelloRunner, id, lease))
	if err != nil {
		return 0, wrapf(err, "begin incarnation of Runner %s", id)
	}
	r, err := s.FindRunner(ctx, id)
	if err != nil {
		return 0, err
	}
	for _, database := range s.DatabaseIDs()[1:] {
		if _, err := s.leaseIn(ctx, database, r, incarnation, lease); err != nil {
			s.config.Log.WarnContext(ctx, "Database did not hear of a Runner", "database", database, "runner", id, "error", err)
		}
	}
	return incarnation, nil
}

// leaseIn leases the Runner in a database other than 0; false where that knows a newer incarnation.
func (s *Store) leaseIn(ctx context.Context, database int, r Runner, incarnation int64, lease time.Duration) (bool, error) {
	ok, err := only(platformQuery(ctx, s, database, pgx.RowTo[bool], sqlLeaseRunner, r.ID, r.Fleet, incarnation, lease))
	return ok, wrapf(err, "lease Runner %s in database %d", r.ID, database)
}
