package store

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Store is the way to every database of this process. It is safe for concurrent use.
type Store struct {
	config    Config
	databases map[int]*database
	routes    routes
	turns     turnstile
	writing   writing
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
// Database 0 must pass. Another one that does not is logged and looked at again when one of its tenants calls: whoever
// administers it must not be able to keep everybody's processes from starting (REQ-239).
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
	if err := s.firstLooks(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("open store: database 0: %w", err)
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
			(*want.into).patience = foreignTime
			distrust(config.ConnConfig)
		}
	}
	return db, nil
}

func (db *database) pools() []*pool {
	return slices.DeleteFunc([]*pool{db.app, db.system, db.provision}, func(p *pool) bool { return p == nil })
}

// firstLooks opens every pool, of all databases at once: many that are away take no longer than one.
func (s *Store) firstLooks(ctx context.Context) error {
	var others sync.WaitGroup
	defer others.Wait()
	for id, db := range s.databases {
		if id == 0 {
			continue
		}
		others.Go(func() {
			if err := firstLook(ctx, db); err != nil {
				s.config.Log.WarnContext(ctx, "Database is away or wrong; its tenants wait", "database", id, "error", err)
			}
		})
	}
	return firstLook(ctx, s.databases[0])
}

func firstLook(ctx context.Context, db *database) error {
	for _, p := range db.pools() {
		if _, err := p.get(ctx); err != nil {
			return fmt.Errorf("%s connection: %w", p.right, err)
		}
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
