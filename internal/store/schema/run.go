package schema

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

const (
	// What serialises migrations and repairs of one database is the table of what was applied: nobody can lock it who has no
	// right to it. firstLock is for a database that has none yet, and no login of a tenant either; whoever may connect could
	// take its number and keep it. Both are a transaction's, so they cannot outlive it and work wherever transactions do.
	lockHistory = "lock table compass.schema_migrations in exclusive mode"
	firstLock   = "select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('compass.migrate', 0))"

	defaultLockTimeout = 5 * time.Second
	defaultWait        = 2 * time.Minute
	ddlTries           = 5
)

// Options say where and what to migrate.
type Options struct {
	// DSN is a direct connection to the database to migrate, as a role that may act as its owner (required).
	DSN string
	// Migrations are the files, as Load returns them (required).
	Migrations []Migration
	// LockTimeout bounds how long a statement of a file waits for a table's lock, because readers queue behind it; the file
	// is tried again a few times. Default 5 s.
	LockTimeout time.Duration
	// Wait bounds how long to wait for another runner. Default 2 min.
	Wait time.Duration
	// Log gets one line per applied file. Default: none.
	Log *slog.Logger
}

// Runner applies migrations.
type Runner struct {
	o      Options
	config *pgx.ConnConfig
	roles  naming.Roles
}

// Status is what a database has.
type Status struct {
	Version int // the newest applied, 0 for an empty database
	Latest  int // the newest this binary has
	Serves  int // the oldest version that a binary must know to work here
	Applied []Applied
	Pending []Migration
}

// Applied is a file that was applied.
type Applied struct {
	Version         int
	Name, Sum       string
	Serves          int
	AppliedAtUnixMS int64
}

// New checks the options; it connects to nothing.
func New(o Options) (*Runner, error) {
	if o.DSN == "" || len(o.Migrations) == 0 {
		return nil, errors.New("migration runner needs a DSN and migrations")
	}
	if o.LockTimeout == 0 {
		o.LockTimeout = defaultLockTimeout
	}
	if o.Wait == 0 {
		o.Wait = defaultWait
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	config, err := pgx.ParseConfig(o.DSN)
	if err != nil {
		return nil, errors.New("the DSN cannot be read") // the cause would quote it
	}
	// Nobody's objects stand in front of the system's (operator lesson 41).
	config.RuntimeParams["search_path"] = "pg_catalog"
	roles, err := naming.RolesOf(config.Database)
	if err != nil {
		return nil, fmt.Errorf("migration runner: %w", err)
	}
	return &Runner{o: o, config: config, roles: roles}, nil
}

// Status reads what was applied and what is pending. A changed history is an error that is ErrSchema.
func (r *Runner) Status(ctx context.Context) (Status, error) {
	conn, err := r.connect(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("read schema status: %w", err)
	}
	defer conn.Close(ctx)
	st, err := r.look(ctx, conn)
	if err != nil {
		return st, fmt.Errorf("read schema status: %w", err)
	}
	return st, nil
}

// look reads the status as the owner, whose table it is.
func (r *Runner) look(ctx context.Context, conn *pgx.Conn) (st Status, err error) {
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := actAs(ctx, tx, r.roles.Owner); err != nil {
			return err
		}
		st, err = r.status(ctx, conn)
		return err
	})
	return st, pg.Interpret(err)
}

// Step is a file that Up would run, with the role names in it.
type Step struct {
	Migration
	Rendered string
}

// Plan returns what Up would run now.
func (r *Runner) Plan(ctx context.Context) ([]Step, error) {
	conn, err := r.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("plan migrations: %w", err)
	}
	defer conn.Close(ctx)
	st, err := r.look(ctx, conn)
	if err != nil {
		return nil, fmt.Errorf("plan migrations: %w", err)
	}
	var steps []Step
	for _, m := range st.Pending {
		sql, err := m.render(r.roles)
		if err != nil {
			return nil, fmt.Errorf("plan %s: %w", m.Name, err)
		}
		steps = append(steps, Step{Migration: m, Rendered: sql})
	}
	return steps, nil
}

// Up applies what is pending, each file in a transaction of its own, and returns what the database then has. Any number of
// runners may do so at once. After an error the files before the failed one stay applied.
func (r *Runner) Up(ctx context.Context) (Status, error) {
	conn, err := r.connect(ctx)
	if err != nil {
		return Status{}, fmt.Errorf("migrate: %w", err)
	}
	defer conn.Close(ctx)
	for {
		applied, err := r.applyNext(ctx, conn)
		if err != nil {
			return Status{}, fmt.Errorf("migrate: %w", err)
		}
		if !applied {
			return r.look(ctx, conn)
		}
	}
}

// applyNext tries again where a table was busy for longer than LockTimeout: it leaves the queue so that readers pass.
func (r *Runner) applyNext(ctx context.Context, conn *pgx.Conn) (bool, error) {
	for try := 1; ; try++ {
		applied, err := r.apply(ctx, conn)
		failed, inFile := errors.AsType[*FileError](err)
		if !inFile || pg.Code(failed.Err) != "55P03" || try == ddlTries {
			return applied, err
		}
		pause := time.NewTimer(time.Duration(try)*r.o.LockTimeout/4 + rand.N(r.o.LockTimeout/4))
		select {
		case <-ctx.Done():
			pause.Stop()
			return false, errors.Join(ctx.Err(), err)
		case <-pause.C:
		}
	}
}

func (r *Runner) connect(ctx context.Context) (*pgx.Conn, error) {
	return pg.ConnectDirect(ctx, r.config)
}

// apply runs the next pending file. The transaction first takes the lock and only then reads the version: a runner that
// waited, or was frozen before the lock, finds the file done.
func (r *Runner) apply(ctx context.Context, conn *pgx.Conn) (applied bool, err error) {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return false, pg.Interpret(err)
	}
	defer func() { err = errors.Join(err, ignoreClosed(tx.Rollback(ctx))) }()

	if err := r.enter(ctx, tx); err != nil {
		return false, err
	}
	st, err := r.status(ctx, conn)
	if err != nil || len(st.Pending) == 0 {
		return false, err
	}
	m := st.Pending[0]
	start := time.Now()
	if err := m.run(ctx, conn, r.roles); err != nil {
		return false, err
	}
	if err := record(ctx, tx, m, r.roles); err != nil {
		return false, fmt.Errorf("record %s: %w", m.Name, pg.Interpret(err))
	}
	if err := tx.Commit(ctx); err != nil {
		return false, &FileError{File: m.Name, Err: err}
	}
	r.o.Log.InfoContext(ctx, "Applied migration", "file", m.Name, "took", time.Since(start))
	return true, nil
}

// enter becomes the owner and takes the lock, bounded by Wait; both end with the transaction.
func (r *Runner) enter(ctx context.Context, tx pgx.Tx) error {
	for _, set := range [][2]string{
		{"lock_timeout", ms(r.o.Wait)},
		{"idle_in_transaction_session_timeout", "60000"}, // a frozen runner lets go
		{"statement_timeout", "0"},
	} {
		if _, err := tx.Exec(ctx, "select pg_catalog.set_config($1, $2, true)", set[0], set[1]); err != nil {
			return pg.Interpret(err)
		}
	}
	if err := actAs(ctx, tx, r.roles.Owner); err != nil {
		return err
	}
	if err := lock(ctx, tx); err != nil {
		return fmt.Errorf("wait for another migration: %w", pg.Interpret(err))
	}
	_, err := tx.Exec(ctx, "select pg_catalog.set_config('lock_timeout', $1, true)", ms(r.o.LockTimeout))
	return pg.Interpret(err)
}

func lock(ctx context.Context, tx pgx.Tx) error {
	var there bool
	if err := tx.QueryRow(ctx, historyThere).Scan(&there); err != nil {
		return err
	}
	if !there {
		if _, err := tx.Exec(ctx, firstLock); err != nil {
			return err
		}
		// Whoever had it may have made the table, and the next runner takes that alone.
		if err := tx.QueryRow(ctx, historyThere).Scan(&there); err != nil || !there {
			return err
		}
	}
	_, err := tx.Exec(ctx, lockHistory)
	return err
}

// actAs becomes a role until the transaction ends.
func actAs(ctx context.Context, tx pgx.Tx, role string) error {
	_, err := tx.Exec(ctx, "set local role "+pg.Ident(role))
	switch pg.Code(err) {
	case "":
		return pg.Interpret(err)
	case "22023":
		return fmt.Errorf("%w: there is no role %s, so this database was not made for Compass: name the right one in the DSN; "+
			"the operator makes it for a CompassServer, and `compass standalone` for itself", err, role)
	case "42501":
		return fmt.Errorf("%w: this login may not act as %[2]s, which owns the schema: use the admin that made the database, "+
			"or grant it: GRANT %[3]s TO the login", err, role, pg.Ident(role))
	}
	return fmt.Errorf("act as role %s: %w", role, pg.Interpret(err))
}

func ms(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

func ignoreClosed(err error) error {
	if errors.Is(err, pgx.ErrTxClosed) {
		return nil
	}
	return err
}
