package move

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// ErrSameDatabase says: the two databases of a move are one, so that to empty the one would lose the tenant.
var ErrSameDatabase = errors.New("both are the same database")

// Options say which databases there are.
type Options struct {
	// Databases are direct URLs by number, as a role that may act as the owner; 0 must be among them (required).
	Databases map[int]string
	// Quiet bounds how long to wait for transactions that began before the freeze. Default 1 min.
	Quiet time.Duration
	// Routes is how long a process may remember an old route: so long the old database keeps what it had, for readers.
	// Default 10 s, twice what the store remembers.
	Routes time.Duration
	// Log gets one line per move. Default: none.
	Log *slog.Logger
	// After is the clock. Default time.After.
	After func(time.Duration) <-chan time.Time
}

// Mover moves tenants. It holds no connection between calls.
type Mover struct {
	o       Options
	configs map[int]*pgx.ConnConfig
}

const (
	defaultQuiet  = time.Minute
	defaultRoutes = 10 * time.Second
	undoTimeout   = 10 * time.Second
	pollEvery     = 20 * time.Millisecond
)

// New checks the options; it connects to nothing.
func New(o Options) (*Mover, error) {
	if _, ok := o.Databases[0]; !ok {
		return nil, errors.New("mover: database 0 is missing: it says where every tenant lives")
	}
	if o.Quiet <= 0 {
		o.Quiet = defaultQuiet
	}
	if o.Routes <= 0 {
		o.Routes = defaultRoutes
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.After == nil {
		o.After = time.After
	}
	m := &Mover{o: o, configs: map[int]*pgx.ConnConfig{}}
	for id, dsn := range o.Databases {
		config, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, fmt.Errorf("mover: the DSN of database %d cannot be read", id) // the cause would quote it
		}
		config.RuntimeParams["search_path"] = "pg_catalog"
		m.configs[id] = config
	}
	return m, nil
}

// Move brings a tenant to a database and returns when nothing of it is left elsewhere. ErrNotFound: no such tenant.
// ErrConflict: somebody else moved it meanwhile. ErrSchema: the two databases do not have the same schema. ErrTimeout: a
// transaction from before the freeze did not end; the tenant goes on where it was.
func (m *Mover) Move(ctx context.Context, tenant string, to int) error {
	if err := m.move(ctx, tenant, to); err != nil {
		return fmt.Errorf("move tenant %s to database %d: %w", tenant, to, pg.Interpret(err))
	}
	return nil
}

func (m *Mover) move(ctx context.Context, tenant string, to int) error {
	zero, err := m.open(ctx, tenant, 0)
	if err != nil {
		return err
	}
	defer zero.close(ctx)
	from, err := zero.livesIn(ctx)
	if err != nil {
		return err
	}
	if from != to {
		if err := m.bring(ctx, zero, from, to); err != nil {
			return err
		}
		m.o.Log.InfoContext(ctx, "Tenant moved", "tenant", tenant, "from", from, "to", to)
	}
	return m.settle(ctx, zero, to)
}

// bring is everything up to the flip. What fails before it leaves the tenant where it was, and thawed.
func (m *Mover) bring(ctx context.Context, zero *side, from, to int) (err error) {
	source, err := m.open(ctx, zero.tenant, from)
	if err != nil {
		return err
	}
	defer source.close(ctx)
	target, err := m.open(ctx, zero.tenant, to)
	if err != nil {
		return err
	}
	defer target.close(ctx)
	if err := differ(ctx, source, target); err != nil {
		return err
	}
	if err := sameSchema(ctx, source, target); err != nil {
		return err
	}
	if err := source.freeze(ctx); err != nil {
		return err
	}
	flipping := false
	defer func() {
		if err != nil && !flipping {
			err = errors.Join(err, m.thaw(ctx, zero.tenant, from))
		}
	}()
	if err := source.awaitQuiet(ctx, m.o); err != nil {
		return err
	}
	claim, err := carry(ctx, zero, source, target)
	if err != nil {
		return err
	}
	flipping = true // from here on only the routing row knows where the tenant lives
	if from != 0 {
		if err := source.forgetPlacement(ctx); err != nil {
			return err
		}
	}
	return zero.flip(ctx, from, to, claim)
}

// thaw undoes the freeze, also where ctx has ended.
func (m *Mover) thaw(ctx context.Context, tenant string, id int) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	s, err := m.open(ctx, tenant, id)
	if err != nil {
		return err
	}
	defer s.close(ctx)
	return s.setFrozen(ctx, false)
}

// settle thaws the tenant where it lives now and, once nobody remembers another route, empties the rest.
func (m *Mover) settle(ctx context.Context, zero *side, home int) error {
	target, err := m.open(ctx, zero.tenant, home)
	if err != nil {
		return err
	}
	defer target.close(ctx)
	if home != 0 { // whose placement an earlier try may have removed
		place, err := zero.placement(ctx)
		if err != nil {
			return err
		}
		if err := target.scoped(ctx, func(tx pgx.Tx) error { return putPlacement(ctx, tx, place) }); err != nil {
			return err
		}
	}
	if err := target.setFrozen(ctx, false); err != nil {
		return err
	}
	rest, err := m.leftIn(ctx, zero.tenant, home)
	if err != nil {
		return err
	}
	if len(rest) == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-m.o.After(m.o.Routes):
	}
	for _, id := range rest {
		if err := m.emptyOne(ctx, zero, id, home); err != nil {
			return err
		}
	}
	return nil
}

// leftIn lists the databases beside its home that have rows of the tenant.
func (m *Mover) leftIn(ctx context.Context, tenant string, home int) (rest []int, err error) {
	for _, id := range slices.Sorted(maps.Keys(m.configs)) {
		if id == home {
			continue
		}
		s, err := m.open(ctx, tenant, id)
		if err != nil {
			return nil, err
		}
		there, err := s.hasRows(ctx)
		s.close(ctx)
		if err != nil {
			return nil, err
		}
		if there {
			rest = append(rest, id)
		}
	}
	return rest, nil
}

// emptyOne asks once more where the tenant lives, for a while has passed.
func (m *Mover) emptyOne(ctx context.Context, zero *side, id, home int) error {
	now, err := zero.livesIn(ctx)
	if err != nil {
		return err
	}
	if now != home {
		return fmt.Errorf("%w: it lives in database %d by now", pg.ErrConflict, now)
	}
	s, err := m.open(ctx, zero.tenant, id)
	if err != nil {
		return err
	}
	defer s.close(ctx)
	return s.scoped(ctx, func(tx pgx.Tx) error { return s.empty(ctx, tx) })
}

func (m *Mover) open(ctx context.Context, tenant string, id int) (*side, error) {
	config, ok := m.configs[id]
	if !ok {
		return nil, fmt.Errorf("database %d is not among those of this mover", id)
	}
	roles, err := naming.RolesOf(config.Database)
	if err != nil {
		return nil, err
	}
	conn, err := pg.ConnectDirect(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("database %d: %w", id, err)
	}
	return &side{id: id, tenant: tenant, conn: conn, roles: roles}, nil
}
