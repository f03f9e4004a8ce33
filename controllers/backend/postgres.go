package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/schema"
	"github.com/rigelbuild/compass-operator/migrations"
)

// Observe tells what is there, which needs an admin that is let in.
func (p *Pool) Observe(ctx context.Context, at Admin, database string) (admin.Observation, error) {
	a, err := p.admin(at)
	if err != nil {
		return admin.Observation{}, err
	}
	seen, err := a.Observe(ctx, database)
	return seen, at.interpret(err)
}

// EnsureDatabase makes database, roles and passwords as they should be, for owner alone, and returns what is then seen.
func (p *Pool) EnsureDatabase(ctx context.Context, at Admin, owner string, spec admin.Spec) (admin.Observation, error) {
	a, err := p.admin(at)
	if err != nil {
		return admin.Observation{}, err
	}
	if at.drift.Reporting() {
		return at.compare(ctx, a, spec)
	}
	if spec.MustExist {
		if err := at.mustExist(ctx, a, spec.Database); err != nil {
			return admin.Observation{}, err
		}
	}
	if err := a.Claim(ctx, spec.Database, owner); err != nil {
		return admin.Observation{}, at.interpret(err)
	}
	seen, err := a.Ensure(ctx, spec)
	if err == nil {
		err = a.Claim(ctx, spec.Database, owner)
	}
	if len(seen.Changed) > 0 {
		at.drift.Wrote("database "+spec.Database, seen.Changed...)
	}
	return seen, at.interpret(err)
}

// mustExist looks before anything is written, roles among it.
func (a Admin) mustExist(ctx context.Context, through *admin.Admin, database string) error {
	seen, err := through.Observe(ctx, database)
	if err != nil || seen.Exists {
		return a.interpret(err)
	}
	return fault.Waiting(v1alpha1.ReasonDatabaseConflict, fmt.Sprintf("the tenant lives in database %s, and Postgres at %s has none of that name: "+
		"correct Secret %s, or restore the database there", database, a, a.secret))
}

// compare only looks, for a server whose drift is to be reported.
func (a Admin) compare(ctx context.Context, dry *admin.Admin, spec admin.Spec) (admin.Observation, error) {
	seen, err := dry.Ensure(ctx, spec)
	switch {
	case errors.Is(err, admin.ErrAbsent):
		return seen, a.drift.Allow("database "+spec.Database, "removed")
	case err == nil && len(seen.Changed) > 0:
		return seen, a.drift.Allow("database "+spec.Database, seen.Changed...)
	}
	return seen, a.interpret(err)
}

// Migrate brings the schema to the newest of this binary and every table to its shape. What a person has to put right is
// waited for.
func (p *Pool) Migrate(ctx context.Context, at Admin, database string) (schema.Status, error) {
	r, err := p.runner(at, database)
	if err != nil {
		return schema.Status{}, err
	}
	status, err := r.Status(ctx)
	if err == nil && len(status.Pending) > 0 {
		status, err = r.Up(ctx)
	}
	if failed, ok := errors.AsType[*schema.FileError](err); ok {
		return status, fault.Transient(v1alpha1.ReasonMigrationFailed, migrationError(failed))
	}
	if err != nil {
		return status, at.interpret(err)
	}
	return status, p.reshape(ctx, at, r, database)
}

// reshape brings every table to its shape, or says what stands in the way.
func (p *Pool) reshape(ctx context.Context, at Admin, r *schema.Runner, database string) error {
	audit, err := r.Audit(ctx)
	if err != nil || len(audit.Findings) == 0 {
		return at.interpret(err)
	}
	if err := at.drift.Allow("the schema", texts(audit.Findings)...); err != nil {
		return err
	}
	repaired, err := r.Repair(ctx)
	if err != nil {
		return at.interpret(err)
	}
	for _, f := range repaired.Done {
		p.log.WarnContext(ctx, "Repaired the shape of a table", "database", database, "table", f.Table, "problem", f.Problem)
	}
	if len(repaired.Done) > 0 {
		at.drift.Wrote("the schema", texts(repaired.Done)...)
	}
	if len(repaired.Left) > 0 {
		return fault.Waiting(v1alpha1.ReasonWaitingForSuperuser,
			"the schema is not in its shape and this admin cannot put it right: "+strings.Join(texts(repaired.Left), "; "))
	}
	return nil
}

func texts(findings []schema.Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, f.String())
	}
	return out
}

// migrationError tells which statement failed; the message of the server is what a person needs.
func migrationError(f *schema.FileError) error {
	return &said{fmt.Sprintf("migration %v; the schema stays at the version before it", f), f}
}

// RemoveDatabase drops database and roles. Absent is success; what is not owner's is left alone and counts as gone.
func (p *Pool) RemoveDatabase(ctx context.Context, at Admin, owner, database string) error {
	a, err := p.admin(at)
	if err != nil {
		return err
	}
	if err := a.Claim(ctx, database, owner); err != nil {
		if errors.Is(err, admin.ErrClaimed) {
			return nil
		}
		return at.interpret(err)
	}
	if err := a.Remove(ctx, database); err != nil && !errors.Is(err, admin.ErrForeign) {
		return at.interpret(err)
	}
	return nil
}

func (p *Pool) admin(at Admin) (*admin.Admin, error) {
	ca, err := p.file(at.ca)
	if err != nil {
		return nil, err
	}
	a, err := admin.New(admin.Options{DSN: at.dsn(ca), Dry: at.drift.Reporting(), Log: p.log})
	if err != nil {
		return nil, at.invalid(err.Error())
	}
	return a, nil
}

func (p *Pool) runner(at Admin, database string) (*schema.Runner, error) {
	files, err := schema.Load(migrations.FS)
	if err != nil {
		return nil, fmt.Errorf("load migrations: %w", err)
	}
	ca, err := p.file(at.ca)
	if err != nil {
		return nil, err
	}
	own := at
	own.url.Path = "/" + database
	r, err := schema.New(schema.Options{DSN: own.dsn(ca), Migrations: files, Log: p.log})
	if err != nil {
		return nil, at.invalid(err.Error())
	}
	return r, nil
}

// said is an error with words of ours. What a driver says names ports and times, and a condition that changes with every
// attempt would be written with every attempt.
type said struct {
	words string
	cause error
}

func (s *said) Error() string { return s.words }
func (s *said) Unwrap() error { return s.cause }

// Detail is for the log: what the driver said.
func (s *said) Detail() string { return s.cause.Error() }

// interpret is the one place that says what an answer of Postgres means for a condition.
func (a Admin) interpret(err error) error {
	if found := a.judged(err); found != nil || err == nil {
		return found
	}
	user, from := a.url.User.Username(), "Secret "+a.secret.String()
	switch code := pg.Code(err); {
	case strings.HasPrefix(code, "28"):
		return fault.Waiting(v1alpha1.ReasonDatabaseAuthFailed,
			fmt.Sprintf("Postgres at %s refuses %s: correct username and password in %s", a, user, from))
	case pg.NoConnect(err):
		return fault.Waiting(v1alpha1.ReasonDatabaseConflict, fmt.Sprintf("Postgres at %s does not let %s into the database, which belongs to "+
			"somebody else: choose another spec.database.name, or grant %q CONNECT on it", a, user, user))
	case code == "42501":
		return fault.Waiting(v1alpha1.ReasonDatabaseAuthFailed,
			fmt.Sprintf("Postgres at %s lets %s make no roles or databases: ALTER ROLE %q CREATEROLE CREATEDB", a, user, user))
	case code == "3D000" && strings.Contains(a.url.Path, "/"):
		return fault.Waiting(v1alpha1.ReasonInvalidSecret,
			fmt.Sprintf("Postgres at %s has no database %q: correct it in %s", a, strings.TrimPrefix(a.url.Path, "/"), from))
	case errors.Is(err, pg.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return fault.Transient(v1alpha1.ReasonDatabaseUnreachable, &said{
			fmt.Sprintf("Postgres at %s does not answer: see that it runs, that the operator may reach it, and that %s has its address", a, from), err,
		})
	}
	return err
}

// judged is what we ourselves found there, nil where err is an answer of Postgres.
func (a Admin) judged(err error) error {
	claimed, isClaimed := errors.AsType[admin.ClaimedError](err)
	switch {
	case isClaimed:
		return fault.Waiting(v1alpha1.ReasonDatabaseConflict, fmt.Sprintf("the database is kept by CompassServer %s: choose another "+
			"name, or, if that one is gone, run: %s", claimed.By, claimed.Release))
	case errors.Is(err, admin.ErrUnreadable):
		return a.unreadable()
	case errors.Is(err, admin.ErrForeign):
		return fault.Waiting(v1alpha1.ReasonDatabaseConflict, err.Error()+": choose another spec.database.name, or give it to that role")
	case errors.Is(err, admin.ErrOutdated):
		return fault.Waiting(v1alpha1.ReasonDatabaseUnfit, fmt.Sprintf("Postgres at %s: %v; upgrade it, or name another in Secret %s", a, err, a.secret))
	case errors.Is(err, admin.ErrBeyondAdmin):
		return fault.Waiting(v1alpha1.ReasonWaitingForSuperuser, err.Error())
	}
	return nil
}
