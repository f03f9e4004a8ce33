package storetwin

import (
	"sync"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// margin is what a promotion adds to every number, in microseconds (Timeline).
const margin = 60_000_000

// kept is how many commits a failover can forget at most.
const kept = 64

// DB is one database.
type DB struct {
	rules Rules
	now   func() time.Time

	mu        sync.Mutex
	skew      time.Duration
	timeline  int64
	life      int // raised by each failover: a transaction of an older life is gone
	away      bool
	locks     map[lockKey]*lock
	released  chan struct{} // closed, and made anew, when locks were released
	newest    []commit
	facts     []Fact
	swept     map[pair]int64 // of Rules.TickMoved
	serial    int64          // of Rules.Sequence
	deadlocks int
	tables
}

type commit struct {
	undo  []func()
	facts int
}

// Fact is something that was committed, in order, for whoever checks a history afterwards. What a failover forgot is not
// in it.
type Fact struct {
	At      time.Time
	Kind    FactKind
	Tenant  store.TenantID
	Agent   string
	Channel string
	Session string
	Pos     int64
	By      string
}

// FactKind tells facts apart.
type FactKind string

// The facts: a cursor moved to Pos; a session was bound, or ended; a turn was settled; an agent joined or left at
// Pos; a worker wrote that was not the writer, or a Runner was expired whose lease lasted, which only a rule that is off
// allows.
const (
	FactAcked   FactKind = "acked"
	FactBound   FactKind = "bound"
	FactSettled FactKind = "settled"
	FactJoined  FactKind = "joined"
	FactLeft    FactKind = "left"
	FactEnded   FactKind = "ended"
	FactStale   FactKind = "stale"
	FactAlive   FactKind = "alive"
)

// New makes an empty database. now is its clock.
func New(now func() time.Time, rules Rules) *DB {
	return &DB{
		rules: rules, now: now, timeline: 1, locks: map[lockKey]*lock{}, released: make(chan struct{}),
		swept: map[pair]int64{}, tables: newTables(),
	}
}

// clock is the database's own time.
func (db *DB) clock() time.Time { return db.now().Add(db.skew) }

func (db *DB) unixMs() int64 { return db.clock().UnixMilli() }

// number is compass.number(): what only goes up, also across a failover.
func (db *DB) number() int64 {
	if db.rules.Milliseconds {
		return db.clock().UnixMilli() * 1000
	}
	return db.clock().UnixMicro() + db.timeline*margin
}

// GoAway lets nothing through until ComeBack: open transactions are gone, statements fail.
func (db *DB) GoAway() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.away = true
	db.dropAll()
}

// ComeBack ends an outage.
func (db *DB) ComeBack() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.away = false
}

// Failover promotes a server that never heard of the newest commits, at most lose of them, and whose clock is off by skew
// from now on. It returns how many it forgot.
func (db *DB) Failover(lose int, skew time.Duration) (forgot int) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.dropAll()
	for forgot < lose && len(db.newest) > 0 {
		c := db.newest[len(db.newest)-1]
		db.newest = db.newest[:len(db.newest)-1]
		for i := len(c.undo) - 1; i >= 0; i-- {
			c.undo[i]()
		}
		db.facts = db.facts[:c.facts]
		forgot++
	}
	db.timeline++
	db.skew = skew
	return forgot
}

// Replicated says that every commit so far is on all servers: no failover forgets it.
func (db *DB) Replicated() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.newest = nil
}

// dropAll ends every open transaction. Called under mu.
func (db *DB) dropAll() {
	db.life++
	db.locks = map[lockKey]*lock{}
	db.wake()
}

// wake lets who waits for a lock look again. Called under mu.
func (db *DB) wake() {
	close(db.released)
	db.released = make(chan struct{})
}

// Deadlocks is how many transactions were ended because they waited for each other.
func (db *DB) Deadlocks() int {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.deadlocks
}
