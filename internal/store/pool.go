package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// pool is one role's connections to one database. It opens at its first use, after the connection has been looked at, so
// that a database that is down delays its own tenants and nobody else (REQ-239).
type pool struct {
	config   *pgxpool.Config
	right    right
	mode     string // Config.ExecMode
	vet      func(context.Context, *pgx.Conn) error
	patience time.Duration // for one call; 0: as long as its context has

	mu      sync.Mutex
	open    *pgxpool.Pool
	looking *attempt
	closed  bool
}

var errClosed = errors.New("the store is closed")

// attempt is a look at a pool that is under way; everybody who needs the pool waits for the same one.
type attempt struct {
	done chan struct{}
	err  error
}

// right is what a connection is for, and so which role must be behind it.
type right string

const (
	rightApp       right = "app"
	rightSystem    right = "system"
	rightProvision right = "provision"
)

// lookTimeout bounds an attempt, whoever waits for it.
const lookTimeout = 2 * connectTimeout

// get returns the open pool. Whoever comes first has a connection looked at; all who come meanwhile share the verdict,
// each no longer than its own context. A bad verdict is not remembered: the next call looks again.
func (p *pool) get(ctx context.Context) (*pgxpool.Pool, error) {
	p.mu.Lock()
	if p.open != nil {
		defer p.mu.Unlock()
		return p.open, nil
	}
	a := p.looking
	if a == nil {
		a = &attempt{done: make(chan struct{})}
		p.looking = a
		go p.attempt(context.WithoutCancel(ctx), a)
	}
	p.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-a.done:
	}
	if a.err != nil {
		return nil, a.err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open, nil
}

func (p *pool) attempt(ctx context.Context, a *attempt) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	err := p.look(ctx)
	if err != nil && ctx.Err() != nil { // our own bound, nobody's wish to end
		err = fmt.Errorf("%w: no answer within %v: %w", ErrUnavailable, lookTimeout, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.closed {
		err = errClosed
	}
	if err == nil {
		p.open, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), p.config)
	}
	a.err, p.looking = err, nil
	close(a.done)
}

// look checks over one connection that the role is the right one and the schema fits, and finds the exec mode.
func (p *pool) look(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, p.config.ConnConfig)
	if err != nil {
		return interpret(err)
	}
	defer conn.Close(ctx)
	pooler, err := pg.DetectPooler(ctx, conn)
	if err != nil {
		return err
	}
	mode, err := execMode(p.mode, pooler)
	if err != nil {
		return err
	}
	if err := p.vet(ctx, conn); err != nil {
		return err
	}
	p.config.ConnConfig.DefaultQueryExecMode = mode
	return nil
}

// execMode chooses how statements are sent: named prepared statements are the fastest and need a server connection of
// their own or a pooler that tracks them; described ones are right everywhere.
func execMode(want string, pooler pg.Pooler) (pgx.QueryExecMode, error) {
	named := !pooler.Present || pooler.Tracked
	switch want {
	case "":
		if named {
			return pgx.QueryExecModeCacheStatement, nil
		}
		return pgx.QueryExecModeCacheDescribe, nil
	case "statement":
		if named {
			return pgx.QueryExecModeCacheStatement, nil
		}
		return 0, fmt.Errorf("exec mode %q needs a pooler that tracks prepared statements, and this one does not: "+
			"leave the mode empty, or use PgBouncer 1.21 or later with max_prepared_statements above 0", want)
	case "describe":
		return pgx.QueryExecModeCacheDescribe, nil
	case "exec":
		return pgx.QueryExecModeExec, nil
	}
	return 0, fmt.Errorf("exec mode %q is none of statement, describe, exec and empty", want)
}

// run sends b as one implicit transaction and waits until it has ended.
func (p *pool) run(ctx context.Context, b *pgx.Batch) error {
	ctx, cancel := p.bounded(ctx)
	defer cancel()
	return interpret(p.send(ctx, b).Close())
}

// send sends b as one implicit transaction.
func (p *pool) send(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	open, err := p.get(ctx)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return open.SendBatch(ctx, b)
}

// bounded is ctx with the time that the database has for one call.
func (p *pool) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if p.patience == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, p.patience)
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.open != nil {
		p.open.Close()
	}
}
