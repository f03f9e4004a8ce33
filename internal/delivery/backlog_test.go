package delivery

import (
	"runtime"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// A hundred thousand messages are owed to one agent that consumes nothing. They cost the worker a window and a page, not
// their number, and nobody else waits for them.
func TestBacklogCostsNoMemory(t *testing.T) { //nolint:paralleltest // it measures the heap
	const many, bound = 100_000, 8 << 20
	s := newSite(t)
	bot, session := s.agent(t, "bot")
	first := s.post(t)
	s.Exec(t, `insert into compass.messages (tenant_id, id, channel_id, author_id, seq, rev, pos, blocks, client_id, mentions_routed_at)
		select m.tenant_id, 'm_' || lpad(i::text, 26, '0'), m.channel_id, m.author_id, m.seq + i, m.rev + i, m.pos + i, m.blocks, i, now()
		  from compass.messages m, generate_series(1, $2::bigint) i where m.id = $1`, first.ID, many)
	s.Exec(t, `update compass.channel_heads set last = last + $2, last_pos = last_pos + $2 where channel_id = $1`, s.room.ID, many)
	s.Exec(t, `analyze compass.messages`)
	s.box.mu.Lock()
	s.box.ackEach = false
	s.box.mu.Unlock()
	before := inUse()
	life := s.worker(t, "one")
	deadline := time.After(time.Minute)
	for look := time.NewTicker(5 * time.Millisecond); len(s.box.of(session.ID)) < 16; {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("took %d, want a window", len(s.box.of(session.ID)))
		}
	}
	if grown := inUse() - before; grown > bound {
		t.Errorf("the worker grew by %d KiB, want %d at most", grown>>10, bound>>10)
	}
	other, free := s.agent(t, "other") // joins at the head, and owes nothing of it
	last := s.post(t)
	s.publish(t, store.MessageRef{ID: last.ID, Pos: last.Pos})
	s.await(t, free, "not behind "+bot.Handle+", "+other.Handle, last)
	if n := len(s.box.of(session.ID)); n != 16 {
		t.Errorf("%d were sent to who acknowledges nothing, want a window", n)
	}
	life.stop(t, true)
}

// inUse is what is in use after everything that can go has gone.
func inUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // a few megabytes
}
