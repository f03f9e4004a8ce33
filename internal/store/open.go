package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Store is the way to every database of this process. It is safe for concurrent use.
type Store struct {
	config    Config
	databases map[int]*database
	routes    routes
	turns     turnstile
}

// database is one database and the pools of the rights that this process has in it.
type database struct {
	id        int
	app       *pool
	system    *pool
	provision *pool
	direct    string
}

// Open looks at every database over each right that it was given: that it answers, that the role is no more than it
// should be, that the schema is one that this binary serves (ErrSchema says what to do), and what stands in front of it.
// Database 0 must pass. Another one that cannot be reached is logged and looked at again when one of its tenants calls;
// one that is wrong is refused.
func Open(ctx context.Context, config Config) (*Store, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s := &Store{config: config, databases: map[int]*database{}}
	for _, d := range config.Databases {
		if s.databases[d.ID], err = s.prepare(d); err != nil {
			return nil, fmt.Errorf("open store: database %d: %w", d.ID, err)
		}
	}
	for _, id := range s.DatabaseIDs() {
		if err := s.firstLook(ctx, s.databases[id]); err != nil {
			s.Close()
			return nil, fmt.Errorf("open store: database %d: %w", id, err)
		}
	}
	if config.Bootstrap {
		if _, err := s.BootstrapTenant(ctx); err != nil {
			s.Close()
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	return s, nil
}

func (s *Store) prepare(d Database) (*database, error) {
	db := &database{id: d.ID, direct: d.Direct}
	for _, want := range []struct {
		into  **pool
		dsn   string
		right right
		conns int32
	}{
		{&db.app, d.App, rightApp, s.config.MaxConns},
		{&db.system, d.System, rightSystem, systemConns},
		{&db.provision, d.Provision, rightProvision, provisionConns},
	} {
		if want.dsn == "" {
			continue
		}
		config, err := poolConfig(want.dsn, want.conns)
		if err != nil {
			return nil, fmt.Errorf("%s connection: %w", want.right, err)
		}
		r := want.right
		*want.into = &pool{config: config, right: r, mode: s.config.ExecMode,
			vet: func(ctx context.Context, conn *pgx.Conn) error { return s.vet(ctx, conn, r) }}
		if d.ID != 0 {
			(*want.into).distrust(config)
		}
	}
	return db, nil
}

func (db *database) pools() []*pool {
	return slices.DeleteFunc([]*pool{db.app, db.system, db.provision}, func(p *pool) bool { return p == nil })
}

// firstLook opens every pool of a database. A database other than 0 that is merely away is left for later.
func (s *Store) firstLook(ctx context.Context, db *database) error {
	for _, p := range db.pools() {
		_, err := p.get(ctx)
		if err == nil {
			continue
		}
		if db.id != 0 && isAway(err) {
			s.config.Log.WarnContext(ctx, "Database is away; its tenants wait", "database", db.id, "right", p.right, "error", err)
			return nil
		}
		return fmt.Errorf("%s connection: %w", p.right, err)
	}
	return nil
}

// DatabaseIDs lists the databases of this process, 0 first.
func (s *Store) DatabaseIDs() []int {
	ids := make([]int, 0, len(s.databases))
	for id := range s.databases {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (s *Store) database(_ context.Context, id int) (*database, error) {
	db, ok := s.databases[id]
	if !ok {
		return nil, fmt.Errorf("%w: database %d is not among those of this process", ErrUnavailable, id)
	}
	return db, nil
}

const sqlNow = `select clock_timestamp()`

// Ping asks database 0 and returns its clock.
func (s *Store) Ping(ctx context.Context) (time.Time, error) { return s.PingDatabase(ctx, 0) }

// PingDatabase asks one database and returns its clock, which judges leases and health (D6).
func (s *Store) PingDatabase(ctx context.Context, id int) (time.Time, error) {
	db, err := s.database(ctx, id)
	if err != nil {
		return time.Time{}, err
	}
	times, err := collect(ctx, db.app, &pgx.Batch{}, pgx.RowTo[time.Time], sqlNow, nil)
	now, err := only(times, err)
	if err != nil {
		return time.Time{}, fmt.Errorf("ping database %d: %w", id, err)
	}
	return now, nil
}

// Close ends every connection. Calls that are under way finish first.
func (s *Store) Close() {
	for _, db := range s.databases {
		for _, p := range db.pools() {
			p.close()
		}
	}
}
