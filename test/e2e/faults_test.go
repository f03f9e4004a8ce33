package e2e

import (
	"fmt"
	"testing"

	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// A frozen worker wakes up believing. Meanwhile another one has taken over; the first writes nothing, moves no Runner, and
// ends.
//
// Holds REQ-209, REQ-228, REQ-237.
func TestFrozenWorkerIsFollowed(t *testing.T) {
	t.Parallel()
	s, w1 := newScene(t, "worker 1")
	old := s.truth.lease()
	w2 := s.waits("worker 2")
	w1.freeze()
	held := s.holds(w2, old.Epoch)
	s.delivers("by the second")
	w1.thaw()
	s.talk.goesOn(t, 20)
	if code := w1.code(); code == 0 {
		t.Error("the first ended as if nothing had happened")
	}
	if now := s.truth.lease(); now.Epoch != held.Epoch || now.Holder != held.Holder {
		t.Errorf("the lease went from %v to %v when the first woke up", held, now)
	}
	s.delivers("still by the second")
	s.end()
}

// A write of the worker's that is under way when it loses the lease comes too late: Postgres refuses it for the epoch and the
// nonce that it carries. It is held on its way until the next worker has taken over and its author is gone.
func TestLateWriteIsRefused(t *testing.T) {
	t.Parallel()
	s, w1 := newScene(t, "worker 1")
	old := s.truth.lease()
	w2 := s.waits("worker 2")
	held := make(chan struct{})
	w1.pg.onMark(s.proof(), func(_ *proxy, l *link) {
		l.held[up] = true
		close(held)
	})
	asked := call(t, s.s.api.comms.PostMessage, mentioning(s.channel, "late", "witness")).GetMessage().GetId()
	<-held
	w1.pg.hold(up) // nor is its lease renewed
	if code := w1.code(); code == 0 {
		t.Error("the first ended as if nothing had happened")
	}
	s.holds(w2, old.Epoch)
	s.box.record.await(asked, 1)
	w1.pg.release()
	await(t, "Postgres refuses the write", func() string {
		return unless(s.logged("stale writer: the lease of stream main is not held with this epoch"), "not yet")
	})
	s.end()
}

// proof is how a write of the worker's is known by: nonce and tenant, as assert_writer is given them, one after the other.
func (s *scene) proof() string {
	id := string(s.tenant.ID)
	return s.truth.nonce() + "\x00\x00\x00" + string(rune(len(id))) + id
}

// The network breaks in the middle of a write, and nobody tells Postgres: it waits for the rest, with the locks of what it has
// done, and with the one that a takeover waits for. The next worker ends that.
func TestHalfABatchArrives(t *testing.T) {
	t.Parallel()
	s, w1 := newScene(t, "worker 1")
	old := s.truth.lease()
	w2 := s.waits("worker 2")
	half := make(chan struct{})
	w1.pg.onMark(s.proof(), func(p *proxy, l *link) {
		loseSync(p, l)
		close(half)
	})
	asked := call(t, s.s.api.comms.PostMessage, mentioning(s.channel, "half", "witness")).GetMessage().GetId()
	<-half
	w1.pg.hold(up)
	w1.pg.hold(down)
	if code := w1.code(); code == 0 {
		t.Error("the first ended as if nothing had happened")
	}
	s.holds(w2, old.Epoch)
	s.box.record.await(asked, 1)
	s.delivers("by the second")
	s.end()
}

// Cut off from Postgres alone, whether it hears of it or not, a worker gives up before anybody can follow it, and sends
// nothing more though the broker still listens.
func TestWorkerCutOffFromPostgres(t *testing.T) {
	t.Parallel()
	for name, cut := range map[string]func(p *proxy){
		"refused": (*proxy).refuse,
		"silent":  func(p *proxy) { p.hold(up); p.hold(down) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, w1 := newScene(t, "worker 1")
			old := s.truth.lease()
			w2 := s.waits("worker 2")
			cut(w1.pg)
			if code := w1.code(); code == 0 {
				t.Error("the first ended as if nothing had happened")
			}
			if now := s.truth.lease(); now.Holder != "worker 1" {
				t.Errorf("the lease is %v: somebody took it while the first was still there", now)
			}
			s.holds(w2, old.Epoch)
			s.delivers("by the second")
			s.end()
		})
	}
}

// Cut off from NATS alone, for longer than a lease, a worker stays the writer, people post on, and when it is back it finds
// what it missed.
func TestWorkerCutOffFromNATS(t *testing.T) {
	t.Parallel()
	s, w1 := newScene(t, "worker 1")
	old := s.truth.lease()
	w2 := s.waits("worker 2")
	w1.nats.refuse()
	id := s.s.api.post(t, s.channel, "while the worker hears nothing").GetId()
	since := s.truth.expires()
	await(t, "the lease is renewed for longer than it lasts", func() string {
		return unless(s.truth.expires().Sub(since) > store.DefaultLeaseTTL, "not yet")
	})
	if len(s.box.record.of(id)) != 0 || ready(t, w2.metrics) == "" {
		t.Error("somebody else delivered, or is ready to")
	}
	w1.nats.open(s.address)
	s.box.record.await(id, 1)
	if now := s.truth.lease(); now.Epoch != old.Epoch {
		t.Errorf("the lease went from %v to %v though Postgres was there all the time", old, now)
	}
	s.end()
}

// Five want the lease; one has it, whatever becomes of the one before: killed, frozen, asked to go, cut off.
func TestFiveWantTheLease(t *testing.T) {
	t.Parallel()
	s, w := newScene(t, "worker 0")
	var others []*worker
	for n := range 4 {
		others = append(others, s.waits(fmt.Sprint("worker ", n+1)))
	}
	for n, lose := range []func(*worker){
		(*worker).kill,
		func(w *worker) { w.freeze() },
		func(w *worker) { w.terminate() },
		func(w *worker) { w.pg.refuse() },
	} {
		old := s.truth.lease()
		lose(w)
		var next *worker
		await(t, fmt.Sprintf("somebody follows the loss %d", n), func() string {
			now := s.truth.lease()
			for i, o := range others {
				if now.Epoch > old.Epoch && now.Holder == o.name {
					next, others = o, append(others[:i:i], others[i+1:]...)
					return ""
				}
			}
			return fmt.Sprintf("%v", now)
		})
		next.serves()
		s.delivers(fmt.Sprintf("after the loss %d", n))
		for _, o := range others {
			if ready(t, o.metrics) == "" || o.nats.connections() != 0 {
				t.Errorf("%s serves beside %s", o.name, next.name)
			}
		}
		if n == 1 { // the frozen one wakes up believing
			w.thaw()
			if code := w.code(); code == 0 {
				t.Error("the frozen one ended as if nothing had happened")
			}
		}
		w = next
	}
	s.end()
}

// The database fails over to a server whose clock is an hour before or behind. Its clock alone says who may write: before,
// the lease is over at once and its holder ends; behind, whoever follows a holder that died need not wait for the hour to
// pass. Nothing is lost or comes twice.
func TestClocksApart(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		by   string
		lose func(s *scene, w *worker)
	}{
		"ahead": {"1 hour", func(_ *scene, w *worker) {
			if code := w.code(); code == 0 {
				w.tb.Error("the first ended as if nothing had happened")
			}
		}},
		"behind": {"-1 hour", func(_ *scene, w *worker) { w.kill() }}, // most often before it could renew by the new clock
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, w1 := newScene(t, "worker 1")
			s.truth.shiftClock(tc.by)
			tc.lose(s, w1)
			old := s.truth.lease()
			w2 := s.worker("worker 2")
			s.holds(w2, old.Epoch)
			s.delivers("by the second")
			s.end()
		})
	}
}

// Two workers of one host that were given no name do not take each other for themselves.
func TestWorkersWithoutAName(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.worker("").serves()
	held := c.truth.lease()
	second := c.waits("")
	if now := c.truth.lease(); now != held || ready(t, second.metrics) == "" {
		t.Errorf("the lease went from %v to %v", held, now)
	}
}

// A pooler in the way of the lease would lose its session at any moment: the worker refuses it and exits.
//
// Holds REQ-237.
func TestLeaseRefusesAPooler(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabase(t)
	pooler := storetest.NewBouncer(t, db, 5)
	known := &secrets{}
	c := settings(t, known, db, "nats://"+closedPort(t))
	c.Store.DatabasesFile = putYAML(t, t.TempDir(), "databases.yaml", map[string]any{
		"databases": []config.Database{{App: pooler.Through(t, db.App), System: pooler.Through(t, db.System), Direct: pooler.Through(t, db.System)}},
	})
	refuses(t, known, []string{"delivery", "--config", putYAML(t, t.TempDir(), "config.yaml", c)}, "pooler", "the address of the Postgres server itself")
}
