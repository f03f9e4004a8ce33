package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// SystemLoop names a background loop that may look across tenants. The system role sees every row, so the constants
// below are the whole list of who uses it (REQ-101): a loop chooses whom to work for, and then works under that tenant's
// scope (REQ-102). The name travels in the statement, so pg_stat_activity shows whose it is.
type SystemLoop string

// The loops. docs/security.md repeats them for auditors.
const (
	LoopSweep     SystemLoop = "sweep"     // which tenants and agents are owed something
	LoopExpiry    SystemLoop = "expiry"    // which Runner leases have ended, and whose sessions those were
	LoopRunners   SystemLoop = "runners"   // which tenants' sessions a Runner hosts, for its heartbeat
	LoopLease     SystemLoop = "lease"     // the delivery worker's lease
	LoopPlacement SystemLoop = "placement" // which tenants a stream carries
	LoopMetrics   SystemLoop = "metrics"   // gauges: owed, held, dead letters
)

var systemLoops = []SystemLoop{LoopSweep, LoopExpiry, LoopRunners, LoopLease, LoopPlacement, LoopMetrics}

// systemQuery runs one statement of a named loop in one database, across tenants. It needs the system right.
func systemQuery[T any](ctx context.Context, s *Store, loop SystemLoop, databaseID int, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	p, err := s.systemPool(ctx, loop, databaseID)
	if err != nil {
		return nil, err
	}
	return collect(ctx, p, &pgx.Batch{}, scan, labelled(loop, sql), args)
}

func labelled(loop SystemLoop, sql string) string {
	return "/* compass loop: " + string(loop) + " */ " + sql
}

func (s *Store) systemPool(ctx context.Context, loop SystemLoop, databaseID int) (*pool, error) {
	if !slices.Contains(systemLoops, loop) {
		return nil, fmt.Errorf("%q is no loop that may use the system role", loop)
	}
	db, err := s.database(ctx, databaseID)
	if err != nil {
		return nil, err
	}
	if db.system == nil {
		return nil, fmt.Errorf("loop %s: this process has no system right in database %d", loop, databaseID)
	}
	return db.system, nil
}

// provisionQuery runs one statement that creates or looks for tenants in one database. It needs the provision right.
func provisionQuery[T any](ctx context.Context, s *Store, databaseID int, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	p, err := s.provisionPool(ctx, databaseID)
	if err != nil {
		return nil, err
	}
	return collect(ctx, p, &pgx.Batch{}, scan, sql, args)
}

// provisionDo runs independent statements that create tenants in one database, all or none, in one round trip. It needs
// the provision right; do's promises hold.
func (s *Store) provisionDo(ctx context.Context, databaseID int, fill func(b *pgx.Batch)) error {
	p, err := s.provisionPool(ctx, databaseID)
	if err != nil {
		return err
	}
	b := &pgx.Batch{}
	fill(b)
	return p.run(ctx, b)
}

func (s *Store) provisionPool(ctx context.Context, databaseID int) (*pool, error) {
	db, err := s.database(ctx, databaseID)
	if err != nil {
		return nil, err
	}
	if db.provision == nil {
		return nil, fmt.Errorf("this process has no provision right in database %d", databaseID)
	}
	return db.provision, nil
}
