package storetwin

import (
	"slices"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// key names a row of a tenant; pair one with two parts, numbered one with a number.
type (
	key  struct{ tenant, id string }
	pair struct{ tenant, a, b string }
	nth  struct {
		tenant, session string
		n               int64
	}
)

type (
	tenantRow struct {
		store.Tenant
		limits store.TenantLimits
		frozen bool
	}
	channelRow struct{ store.Channel }
	headRow    struct{ last, lastPos int64 }
	memberRow  struct{ joinedAt int64 }
	cursorRow  struct{ acked int64 }
	turnRow    struct {
		agent, settledBy string
		openedMs         int64
	}
	messageRow struct {
		store.Message
		mentions []string
		routed   bool
	}
	owedRow struct {
		channel string
		pos     int64
		kind    store.CommandKind
		done    bool
	}
	askRow     struct{ channel, asker, session, answer string }
	attemptRow struct {
		n               int
		firstMs, lastMs int64
	}
	runnerRow      struct{ store.Runner }
	runnerLeaseRow struct {
		fleet       string
		incarnation int64
		expires     time.Time
		sessions    int
	}
	tokenRow struct {
		fleet, bound string
		disabled     bool
	}
	placedRow struct {
		runner, session string
		generation      int64
	}
	bindingRow struct{ store.Binding }
	leaseRow   struct {
		holder, nonce string
		epoch         int64
		expires       time.Time
		clean         bool
		drained       map[string]int64
	}
)

type tables struct {
	tenants    *table[string, tenantRow]
	placements *table[string, store.Placement]
	accounts   *table[key, store.Account]
	channels   *table[key, channelRow]
	heads      *table[key, headRow]
	members    *table[pair, memberRow] // channel, account
	cursors    *table[pair, cursorRow] // agent, channel
	turns      *table[pair, turnRow]   // session, turn
	messages   *table[key, messageRow]
	owed       *table[pair, owedRow]          // agent, message
	asks       *table[key, askRow]            // question
	dead       *table[pair, store.DeadLetter] // message, recipient
	attempts   *table[pair, attemptRow]       // message, recipient
	runners    *table[string, runnerRow]
	leases     *table[string, runnerLeaseRow] // of Runners
	tokens     *table[[32]byte, tokenRow]
	placed     *table[key, placedRow]  // agent
	bindings   *table[key, bindingRow] // session
	commands   *table[nth, store.SessionCommand]
	writers    *table[string, leaseRow] // stream
}

func newTables() tables {
	return tables{
		tenants: newTable[string, tenantRow](), placements: newTable[string, store.Placement](),
		accounts: newTable[key, store.Account](), channels: newTable[key, channelRow](), heads: newTable[key, headRow](),
		members: newTable[pair, memberRow](), cursors: newTable[pair, cursorRow](), turns: newTable[pair, turnRow](),
		messages: newTable[key, messageRow](), owed: newTable[pair, owedRow](), asks: newTable[key, askRow](),
		dead: newTable[pair, store.DeadLetter](), attempts: newTable[pair, attemptRow](),
		runners: newTable[string, runnerRow](), leases: newTable[string, runnerLeaseRow](), tokens: newTable[[32]byte, tokenRow](),
		placed: newTable[key, placedRow](), bindings: newTable[key, bindingRow](),
		commands: newTable[nth, store.SessionCommand](), writers: newTable[string, leaseRow](),
	}
}

// table is what was committed, in the order of insertion, and what open transactions wrote. Rows are values: who changes
// one puts another in its place.
type table[K comparable, R any] struct {
	rows    map[K]R
	order   []K
	pending map[*tx]*overlay[K, R]
}

type overlay[K comparable, R any] struct {
	rows  map[K]*R // nil: deleted
	order []K
}

func newTable[K comparable, R any]() *table[K, R] {
	return &table[K, R]{rows: map[K]R{}, pending: map[*tx]*overlay[K, R]{}}
}

// written is one table as a transaction sees the ones that it wrote.
type written interface {
	commit(t *tx) (undo func())
	rollback(t *tx)
}

func (tb *table[K, R]) get(t *tx, k K) (R, bool) {
	if o := tb.pending[t]; o != nil {
		if r, ok := o.rows[k]; ok {
			if r == nil {
				var zero R
				return zero, false
			}
			return *r, true
		}
	}
	r, ok := tb.rows[k]
	return r, ok
}

func (tb *table[K, R]) put(t *tx, k K, r R) { tb.write(t, k, &r) }

func (tb *table[K, R]) del(t *tx, k K) { tb.write(t, k, nil) }

func (tb *table[K, R]) write(t *tx, k K, r *R) {
	o := tb.pending[t]
	if o == nil {
		o = &overlay[K, R]{rows: map[K]*R{}}
		tb.pending[t] = o
		t.writes = append(t.writes, tb)
	}
	if _, ok := o.rows[k]; !ok {
		o.order = append(o.order, k)
	}
	o.rows[k] = r
}

// all calls fn with every row that the transaction sees, until it returns false. fn may write.
func (tb *table[K, R]) all(t *tx, fn func(k K, r R) bool) {
	o := tb.pending[t]
	for _, k := range tb.order[:len(tb.order):len(tb.order)] {
		if r, ok := tb.get(t, k); ok && !fn(k, r) {
			return
		}
	}
	if o == nil {
		return
	}
	for _, k := range slices.Clone(o.order) {
		if _, committed := tb.rows[k]; committed || o.rows[k] == nil {
			continue
		}
		if !fn(k, *o.rows[k]) {
			return
		}
	}
}

func (tb *table[K, R]) set(k K, r *R) {
	_, known := tb.rows[k]
	switch {
	case r == nil && known:
		delete(tb.rows, k)
		tb.order = slices.DeleteFunc(slices.Clone(tb.order), func(o K) bool { return o == k })
	case r != nil:
		if !known {
			tb.order = append(tb.order, k)
		}
		tb.rows[k] = *r
	}
}

func (tb *table[K, R]) commit(t *tx) (undo func()) {
	o := tb.pending[t]
	delete(tb.pending, t)
	type old struct {
		k K
		r *R
	}
	before := make([]old, 0, len(o.order))
	for _, k := range o.order {
		var was *R
		if r, ok := tb.rows[k]; ok {
			was = &r
		}
		before = append(before, old{k, was})
		tb.set(k, o.rows[k])
	}
	return func() {
		for i := len(before) - 1; i >= 0; i-- {
			tb.set(before[i].k, before[i].r)
		}
	}
}

func (tb *table[K, R]) rollback(t *tx) { delete(tb.pending, t) }
