package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// Defaults of a lease: it is over 6 s after its last renewal by the database's clock, its holder gives up 4 s after it
// began to send the last renewal that succeeded, and renews every 2 s.
const (
	DefaultLeaseTTL    = 6 * time.Second
	DefaultLeaseMargin = 2 * time.Second
	DefaultLeaseRenew  = 2 * time.Second
)

var (
	// ErrLeaseHeld says that somebody else holds the lease; HeldError says for how long.
	ErrLeaseHeld = errors.New("lease is held by another worker")
	// ErrLeaseLost says that the lease is no longer ours, or we can no longer know that it is. Whoever held it stops writing.
	ErrLeaseLost = errors.New("lease lost")
)

// HeldError is ErrLeaseHeld with the time that is left of the lease, by the database's clock.
type HeldError struct{ Remaining time.Duration }

func (e HeldError) Error() string { return fmt.Sprintf("%v: %v left", ErrLeaseHeld, e.Remaining) }

// Unwrap makes errors.Is(err, ErrLeaseHeld) true.
func (e HeldError) Unwrap() error { return ErrLeaseHeld }

// LeaseOptions describe a lease. Stream and Holder are required.
type LeaseOptions struct {
	Database int
	Stream   string
	Holder   string        // this pod: it takes its own lease back at once
	TTL      time.Duration // default DefaultLeaseTTL
	Margin   time.Duration // how much earlier than the database the holder believes itself expired; default DefaultLeaseMargin
	// Now is a clock with a monotonic reading. It stands still while a virtual machine is paused, so the deadline keeps a
	// healthy process honest; safety comes from assert_writer and from the Runners. Default: the store's.
	Now func() time.Time
}

// Lease is the right to write for one stream in one database. It has one direct connection of its own: through a busy pool
// a renewal comes seconds late, and a pooler may cut the session that it needs [F5]. Its methods may be called from several
// goroutines; statements go one after the other.
type Lease struct {
	options LeaseOptions
	connect func(context.Context) (*pgx.Conn, error)
	end     func(context.Context) error // the batches of the stream's writer; see endBatches
	batches sync.Locker                 // none of this process begins while it is locked; see writing

	waited atomic.Bool // the last Acquire got no answer in time

	wire sync.Mutex // one statement at a time
	conn *pgx.Conn  // under wire; nil where there is none

	mu       sync.Mutex
	fence    Fence // Epoch 0: not held
	deadline time.Time
	careful  bool
	since    time.Time
}

// NewLease prepares a lease in one of the store's databases, over its direct connection. It connects at the first use, and
// refuses a pooler then.
func (s *Store) NewLease(o LeaseOptions) (*Lease, error) {
	if o.Stream == "" || o.Holder == "" {
		return nil, errors.New("a lease needs a stream and a holder")
	}
	if db, ok := s.databases[o.Database]; !ok || db.direct == "" {
		return nil, fmt.Errorf("lease of stream %s: this process has no direct connection to database %d", o.Stream, o.Database)
	}
	if o.TTL <= 0 {
		o.TTL = DefaultLeaseTTL
	}
	if o.Margin <= 0 {
		o.Margin = min(DefaultLeaseMargin, o.TTL/3)
	}
	if o.Margin >= o.TTL {
		return nil, fmt.Errorf("lease of stream %s: margin %v leaves nothing of %v", o.Stream, o.Margin, o.TTL)
	}
	if o.Now == nil {
		o.Now = s.config.Now
	}
	connect := func(ctx context.Context) (*pgx.Conn, error) { return s.directConn(ctx, o.Database) }
	end := func(ctx context.Context) error { return s.endBatches(ctx, o.Database, o.Stream) }
	return &Lease{options: o, connect: connect, end: end, batches: s.writing.of(o.Database, o.Stream)}, nil
}

// Database is where the lease is held.
func (l *Lease) Database() int { return l.options.Database }

// Fence is what to prove with a write now; false where the lease is not held or its deadline has passed. It is asked
// before each write, each publish and each ack of a hint.
func (l *Lease) Fence() (Fence, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fence, l.fence.Epoch != 0 && l.options.Now().Before(l.deadline)
}

// Careful says that the last holder did not say goodbye: a row may have killed it.
func (l *Lease) Careful() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.careful
}

// Since is when this process acquired the lease.
func (l *Lease) Since() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since
}

const (
	sqlLeaseAcquire = `select acquired, coalesce(epoch, 0), coalesce(careful, false), remaining from compass.lease_acquire($1, $2, $3, $4, $5)`
	sqlLeaseRenew   = `select compass.lease_renew($1, $2, $3, $4)`
	sqlLeaseRaise   = `select compass.lease_raise($1, $2, $3, $4, $5)`
	sqlLeaseRelease = `select compass.lease_release($1, $2, $3)`
	sqlLeaseOver    = `select l.clean or l.expires_at <= clock_timestamp() from compass.lease_read($1) l`

	// Who shows that it writes for the stream, by the key of compass.writer_key, which the application role may not call. A
	// tenant's login may hold that number too; it is in nobody's way.
	sqlEndBatches = `select pg_terminate_backend(l.pid)
  from pg_locks l join pg_stat_activity a on a.pid = l.pid, (values (hashtextextended('compass.writer/' || $1, 0))) as k (key)
where l.locktype = 'advisory' and l.mode = 'ShareLock' and l.granted and l.objsubid = 1 and a.usename = current_user
  and l.database = (select d.oid from pg_database d where d.datname = current_database())
  and l.classid = ((k.key >> 32) & 4294967295)::oid and l.objid = (k.key & 4294967295)::oid`
)

// Acquire takes the lease if it is free: given back, expired, or held by this very pod. above is the highest epoch that a
// Runner was proved to have seen, else 0. It waits for every batch of the writer before it; one that keeps it waiting until
// ctx ends, under a lease that is over, is ended by the next Acquire. ErrLeaseHeld as HeldError.
func (l *Lease) Acquire(ctx context.Context, above int64) error {
	if l.waited.Load() {
		if err := l.evict(ctx); err != nil {
			return fmt.Errorf("end the batches of the writer before, of stream %s: %w", l.options.Stream, err)
		}
	}
	nonce := rand.Text()
	var acquired, careful bool
	var epoch int64
	var remaining time.Duration
	sent, err := l.ask(ctx, sqlLeaseAcquire, []any{l.options.Stream, l.options.Holder, nonce, l.options.TTL, above},
		&acquired, &epoch, &careful, &remaining)
	l.waited.Store(ctx.Err() != nil)
	switch {
	case err != nil:
		return fmt.Errorf("acquire lease of stream %s: %w", l.options.Stream, err)
	case !acquired:
		return HeldError{Remaining: remaining}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fence = Fence{Stream: l.options.Stream, Epoch: epoch, Nonce: nonce}
	l.careful = careful
	l.since = sent
	l.hold(sent)
	return nil
}

// evict ends what the writer before has begun and not finished, if its lease is over. Postgres waits for the rest of a batch
// as long as the connection seems to live, with the lock that a takeover waits for: without this, a network that broke in the
// middle of one would leave the stream without a writer.
func (l *Lease) evict(ctx context.Context) error {
	var over bool
	_, err := l.ask(ctx, sqlLeaseOver, []any{l.options.Stream}, &over)
	if errors.Is(err, ErrNotFound) || err == nil && !over {
		return nil
	}
	if err != nil {
		return err
	}
	return l.end(ctx)
}

// endBatches ends the connections that have a batch for the stream under way. Those are of the application role, which may end
// its own; nobody else could without being a superuser.
func (s *Store) endBatches(ctx context.Context, databaseID int, stream string) error {
	db, err := s.database(ctx, databaseID)
	if err != nil {
		return err
	}
	_, err = collect(ctx, db.app, &pgx.Batch{}, pgx.RowTo[bool], sqlEndBatches, []any{stream})
	return err
}

// Renew extends the lease. ErrLeaseLost: it is over, or another's, and is only acquired again, never renewed [F2]. Any
// other error leaves the deadline where it was: try again until it passes.
func (l *Lease) Renew(ctx context.Context) error {
	fence := l.held()
	var ok bool
	sent, err := l.ask(ctx, sqlLeaseRenew, []any{fence.Stream, fence.Epoch, fence.Nonce, l.options.TTL}, &ok)
	if err != nil {
		return fmt.Errorf("renew lease of stream %s: %w", fence.Stream, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.fence != fence: // raised meanwhile: this answer is about a lease that we no longer speak of
		return nil
	case !ok:
		l.fence = Fence{}
		return ErrLeaseLost
	}
	l.hold(sent)
	return nil
}

// Raise takes an epoch above a placement's claim, or above what a Runner was proved to have seen, while the lease is ours
// (RaiseEpoch). It is not a takeover: the worker goes on, with what it reads from then on. ErrLeaseLost also where the
// answer did not come: then nobody knows which epoch is ours.
func (l *Lease) Raise(ctx context.Context, above int64) error {
	fence := l.held()
	if fence.Epoch > above {
		return nil // somebody raised it already
	}
	l.batches.Lock() // else one after the other would keep it waiting: a share of a row is given past who waits for the whole
	defer l.batches.Unlock()
	nonce := rand.Text()
	var epoch *int64
	_, err := l.ask(ctx, sqlLeaseRaise, []any{fence.Stream, fence.Epoch, fence.Nonce, nonce, above}, &epoch)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.fence = Fence{}
		return fmt.Errorf("raise lease of stream %s: %w: %w", fence.Stream, ErrLeaseLost, err)
	case epoch == nil:
		l.fence = Fence{}
		return ErrLeaseLost
	}
	l.fence.Epoch, l.fence.Nonce = *epoch, nonce
	return nil
}

// Release says goodbye: the next holder need neither wait nor be careful. To be called when nothing is being written or
// sent any more. It closes the connection.
func (l *Lease) Release(ctx context.Context) error {
	fence := l.held()
	l.mu.Lock()
	l.fence = Fence{}
	l.mu.Unlock()
	defer l.close(ctx)
	if fence.Epoch == 0 {
		return nil
	}
	var ok bool
	if _, err := l.ask(ctx, sqlLeaseRelease, []any{fence.Stream, fence.Epoch, fence.Nonce}, &ok); err != nil {
		return fmt.Errorf("release lease of stream %s: %w", fence.Stream, err)
	}
	if !ok {
		return ErrLeaseLost
	}
	return nil
}

func (l *Lease) held() Fence {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fence
}

// hold sets the deadline from the moment before the statement was sent: whenever the database judged, it was later.
func (l *Lease) hold(sent time.Time) { l.deadline = sent.Add(l.options.TTL - l.options.Margin) }

// ask runs one statement over the lease's own connection and says when it began to. A connection that failed is closed:
// what it still carries may run, and the next statement waits for it in the database, by its locks.
func (l *Lease) ask(ctx context.Context, sql string, args []any, into ...any) (sent time.Time, err error) {
	l.wire.Lock()
	defer l.wire.Unlock()
	if l.conn == nil || l.conn.IsClosed() {
		if l.conn, err = l.connect(ctx); err != nil {
			l.conn = nil
			return time.Time{}, err
		}
	}
	sent = l.options.Now()
	if err = l.conn.QueryRow(ctx, sql, args...).Scan(into...); err != nil {
		_ = l.conn.Close(context.WithoutCancel(ctx)) // the error at hand says more
		l.conn = nil
		return sent, interpret(err)
	}
	return sent, nil
}

func (l *Lease) close(ctx context.Context) {
	l.wire.Lock()
	defer l.wire.Unlock()
	if l.conn != nil {
		_ = l.conn.Close(ctx)
		l.conn = nil
	}
}
