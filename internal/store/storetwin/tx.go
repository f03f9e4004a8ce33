package storetwin

import (
	"context"
	"errors"
	"fmt"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// Verdict is how a step goes.
type Verdict int

// Go: as it should. Refuse: the connection fails before it. Lose: it happens, and the connection fails before the answer.
const (
	Go Verdict = iota
	Refuse
	Lose
)

// Steps decides when each step of a client happens. It may block. Nil: at once.
type Steps interface {
	Step(ctx context.Context, what string) Verdict
}

// Client is one process's way to the database. It has the methods of *store.Store that the ports name.
type Client struct {
	db    *DB
	steps Steps
}

// Client opens one.
func (db *DB) Client(steps Steps) *Client { return &Client{db: db, steps: steps} }

var errDeadlock = fmt.Errorf("%w: deadlock detected", store.ErrUnavailable)

type lockKey struct{ of, tenant, a, b string }

type lock struct {
	alone  *tx
	shared map[*tx]bool
}

// tx is one transaction. Its methods are called by one goroutine.
type tx struct {
	*DB
	ctx    context.Context //nolint:containedctx // of the one call that it serves
	steps  Steps
	tenant string // "" for the named loops of the system role
	system bool
	life   int
	writes []written
	facts  []Fact
	held   []lockKey
	waits  lockKey
	before func() error // runs before the commit
	tail   string       // of its steps' names: whose they are
}

// begin opens a transaction for the tenant of the context.
func (c *Client) begin(ctx context.Context) (*tx, error) {
	tenant, ok := store.TenantFromContext(ctx)
	if !ok {
		return nil, store.ErrNoTenant
	}
	t := c.open(ctx)
	t.tenant = string(tenant)
	t.tail = " " + last(t.tenant, 1)
	return t, nil
}

// asSystem opens one that sees every tenant.
func (c *Client) asSystem(ctx context.Context) *tx {
	t := c.open(ctx)
	t.system = true
	return t
}

func (c *Client) open(ctx context.Context) *tx {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	return &tx{DB: c.db, ctx: ctx, steps: c.steps, life: c.db.life}
}

// do runs fn in a transaction of the context's tenant and commits where it returns nil.
func (c *Client) do(ctx context.Context, what string, fn func(t *tx) error) error {
	t, err := c.begin(ctx)
	if err != nil {
		return err
	}
	return t.run(what, fn)
}

// asLoop is do with the system role.
func (c *Client) asLoop(ctx context.Context, what string, fn func(t *tx) error) error {
	return c.asSystem(ctx).run(what, fn)
}

func (t *tx) run(what string, fn func(t *tx) error) error {
	err := fn(t)
	if err == nil && t.before != nil {
		err = t.before()
	}
	if err == nil && len(t.writes) > 0 {
		err = t.commit(what)
	}
	if err != nil {
		t.rollback()
		return fmt.Errorf("%s: %w", what, err)
	}
	t.release()
	return nil
}

// step waits until this may happen. lost says that it happens and nobody hears of it.
func (t *tx) step(what string) (lost bool, err error) {
	v := Go
	if t.steps != nil {
		v = t.steps.Step(t.ctx, what+t.tail)
	}
	switch v {
	case Go:
	case Refuse:
		return false, store.ErrUnavailable
	case Lose:
		return true, nil
	}
	return false, t.ctx.Err()
}

// alive says whether the connection still stands. Called under mu.
func (t *tx) alive() error {
	if t.away || t.life != t.DB.life {
		return store.ErrUnavailable
	}
	return nil
}

// want is a lock that a statement needs.
type want struct {
	lockKey
	alone bool
}

// stmt is one statement: a step, its locks, one after the other, and then the rows as they are.
func (t *tx) stmt(what string, body func() error, wants ...want) error {
	lost, err := t.step(what)
	if err != nil {
		return err
	}
	for _, w := range wants {
		if err := t.acquire(w); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.alive(); err != nil {
		return err
	}
	if err := body(); err != nil {
		return err
	}
	if lost {
		return store.ErrUnavailable
	}
	return nil
}

// acquire takes a lock to commit; who waits for it is taken up again by a step of its own.
func (t *tx) acquire(w want) error {
	for {
		t.mu.Lock()
		err := t.alive()
		ok := err == nil && t.grant(w)
		if err == nil && !ok {
			if t.waits = w.lockKey; t.circular(t, map[*tx]bool{}) {
				t.deadlocks++
				err = errDeadlock
			}
		}
		released := t.released
		if ok || err != nil {
			t.waits = lockKey{}
		}
		t.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-released:
		case <-t.ctx.Done():
			t.mu.Lock()
			t.waits = lockKey{}
			t.mu.Unlock()
			return t.ctx.Err()
		}
		if _, err := t.step("lock " + w.of); err != nil {
			return err
		}
	}
}

// grant takes the lock if nobody else's keeps it. Called under mu.
func (t *tx) grant(w want) bool {
	l := t.locks[w.lockKey]
	if l == nil {
		l = &lock{shared: map[*tx]bool{}}
		t.locks[w.lockKey] = l
	}
	if l.alone == t {
		return true
	}
	if l.alone != nil {
		return false
	}
	if !w.alone {
		if !l.shared[t] {
			l.shared[t] = true
			t.held = append(t.held, w.lockKey)
		}
		return true
	}
	if len(l.shared) > 1 || len(l.shared) == 1 && !l.shared[t] {
		return false
	}
	l.alone = t
	t.held = append(t.held, w.lockKey)
	return true
}

// circular reports whether who keeps what t waits for waits, in the end, for who asked. Called under mu.
func (t *tx) circular(asked *tx, seen map[*tx]bool) bool {
	l := t.locks[t.waits]
	if t.waits == (lockKey{}) || l == nil || seen[t] {
		return false
	}
	seen[t] = true
	for holder := range l.shared {
		if holder != t && (holder == asked || holder.circular(asked, seen)) {
			return true
		}
	}
	return l.alone != nil && l.alone != t && (l.alone == asked || l.alone.circular(asked, seen))
}

func (t *tx) commit(what string) error {
	lost, err := t.step("commit " + what)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.alive(); err != nil {
		return err
	}
	c := commit{facts: len(t.DB.facts)}
	for _, w := range t.writes {
		c.undo = append(c.undo, w.commit(t))
	}
	t.writes = nil
	for _, f := range t.facts {
		f.At = t.now()
		t.DB.facts = append(t.DB.facts, f)
	}
	if t.newest = append(t.newest, c); len(t.newest) > kept {
		t.newest = append(t.newest[:0], t.newest[len(t.newest)-kept:]...)
	}
	if lost {
		return store.ErrUnavailable
	}
	return nil
}

func (t *tx) rollback() {
	t.mu.Lock()
	for _, w := range t.writes {
		w.rollback(t)
	}
	t.writes = nil
	t.mu.Unlock()
	t.release()
}

func (t *tx) release() {
	if len(t.held) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.held {
		l := t.locks[k]
		if l == nil || l.alone != t && !l.shared[t] {
			continue // a failover has let everything go
		}
		if l.alone == t {
			l.alone = nil
		}
		delete(l.shared, t)
		if l.alone == nil && len(l.shared) == 0 {
			delete(t.locks, k)
		}
	}
	t.held = nil
	t.wake()
}

// sees is row-level security.
func (t *tx) sees(tenant string) bool { return t.system || t.rules.ScopeOff || tenant == t.tenant }

func (t *tx) key(id string) key       { return key{t.tenant, id} }
func (t *tx) pair(a, b string) pair   { return pair{t.tenant, a, b} }
func (t *tx) note(f Fact)             { f.Tenant = store.TenantID(t.tenant); t.facts = append(t.facts, f) }
func (t *tx) alone(of, a string) want { return want{lockKey{of, t.tenant, a, ""}, true} }

func (t *tx) frozen() error {
	if row, ok := t.tenants.get(t, t.tenant); ok && row.frozen {
		return store.ErrFrozen
	}
	return nil
}

// orNotFound turns a missing row into the error that says so.
func orNotFound(ok bool) error {
	if ok {
		return nil
	}
	return store.ErrNotFound
}

func is(err, target error) bool { return errors.Is(err, target) }

// about says what the steps are about, so that two calls of one process are told apart.
func (t *tx) about(id string) { t.tail += "/" + last(id, 4) }

func last(s string, n int) string { return s[max(0, len(s)-n):] }
