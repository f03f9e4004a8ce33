package e2e

import (
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"
)

// scene is a cluster with a Server and a Runner, one agent of it, and people who post all the time while things go wrong.
type scene struct {
	*cluster
	t       *testing.T
	s       *server
	box     *box
	channel string
	agent   string
	talk    *talk
}

// newScene sets one up behind a worker that serves. The floor tick is out of it: what a fault has to bring back must not be
// brought back by chance.
func newScene(t *testing.T, first string) (*scene, *worker) {
	t.Helper()
	c := newCluster(t)
	c.tick = time.Hour
	return newSceneIn(t, c, first)
}

func newSceneIn(t *testing.T, c *cluster, first string) (*scene, *worker) {
	t.Helper()
	s := &scene{cluster: c, t: t, s: c.server("server")}
	w := c.worker(first).serves()
	s.box = c.box(s.s)
	s.channel = s.s.api.channel(t, "general")
	s.agent = s.s.api.agent(t, "witness", s.channel)
	s.s.api.start(t, s.agent)
	s.box.record.await(s.s.api.post(t, s.channel, "before").GetId(), 1)
	s.talk = newTalk(t, s.s.api, s.channel, "this")
	return s, w
}

// end lets people fall silent and holds everything against Postgres: what was posted was taken, in order, once in the session
// that lived through it all, and nothing is owed or set aside.
func (s *scene) end() {
	s.t.Helper()
	said := s.talk.end()
	s.s.api.settled(s.t)
	s.truth.check(s.box.record, s.agent, s.channel)
	lives := map[int64]bool{}
	for _, line := range s.box.record.lines() {
		lives[line.Generation] = true
	}
	if len(lives) != 1 {
		s.t.Errorf("%d generations of the session: want one that lived through it", len(lives))
	}
	s.t.Logf("%d messages", said)
}

// delivers waits until something that is posted from now on was taken.
func (s *scene) delivers(words string) {
	s.t.Helper()
	var id string
	await(s.t, "a post is answered", func() string {
		answer, err := try(s.t, s.s.api.comms.PostMessage, posting(s.channel, words))
		id = answer.GetMessage().GetId()
		return unless(err == nil, "%v", err)
	})
	s.box.record.await(id, 1)
}

// holds waits until the lease is that worker's, above an epoch, and returns it.
func (s *scene) holds(w *worker, above int64) (held lease) {
	s.t.Helper()
	w.serves()
	held = s.truth.lease()
	if held.Holder != w.name || held.Epoch <= above {
		s.t.Errorf("the lease is %v: want %s above epoch %d", held, w.name, above)
	}
	return held
}

// waits starts a worker that does not get the lease, because somebody has it.
func (c *cluster) waits(name string) *worker {
	c.tb.Helper()
	w := c.worker(name)
	await(c.tb, name+" waits", func() string {
		return unless(w.logged(map[string]any{"msg": "Waiting for the lease"}), "not yet")
	})
	return w
}

// talk is people who post at a pace, each message until it is answered.
type talk struct {
	stop chan struct{}
	work sync.WaitGroup
	mu   sync.Mutex
	said int
}

const (
	talkers   = 2
	talkPause = 50 * time.Millisecond
)

func newTalk(t *testing.T, a *api, channel, about string) *talk {
	t.Helper()
	k := &talk{stop: make(chan struct{})}
	for person := range talkers {
		k.work.Go(func() {
			pace := time.NewTicker(talkPause)
			defer pace.Stop()
			for n := 0; ; n++ {
				select {
				case <-pace.C:
				case <-k.stop:
					return
				case <-t.Context().Done():
					return
				}
				insist(t.Context(), a, posting(channel, fmt.Sprintf("%s: person %d says %d", about, person, n)))
				k.mu.Lock()
				k.said++
				k.mu.Unlock()
			}
		})
	}
	return k
}

// end returns how many messages were posted, all of them answered.
func (k *talk) end() int {
	close(k.stop)
	k.work.Wait()
	return k.count()
}

func (k *talk) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.said
}

// goesOn waits until people have posted so much more.
func (k *talk) goesOn(tb testing.TB, more int) {
	tb.Helper()
	until := k.count() + more
	await(tb, "people go on posting", func() string { return unless(k.count() >= until, "%d of %d", k.count(), until) })
}

// freeze stops the process where it is, as a machine that is paused does; thaw lets it go on, believing.
func (p *process) freeze() {
	p.tb.Helper()
	must(p.tb, p.cmd.Process.Signal(syscall.SIGSTOP))
}

func (p *process) thaw() {
	p.tb.Helper()
	must(p.tb, p.cmd.Process.Signal(syscall.SIGCONT))
}
