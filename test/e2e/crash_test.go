package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// crash is a deployment with the Runner as a process of its own, an agent of it, and one message that went all the way.
type crash struct {
	*testing.T
	home    *home
	s       *standalone
	box     *box
	truth   *truth
	channel string
	agent   string
	session string
}

// crashArgs keep the floor tick out of it: what a start has to find must not be found by chance.
func crashArgs() []string {
	return []string{"--agent", "none", "--nats-listen", "127.0.0.1:0", "--floor-tick", "1h"}
}

func newCrash(t *testing.T) *crash {
	t.Helper()
	c := &crash{T: t, home: newHome(t)}
	c.s = c.home.start(crashArgs()...)
	c.box = c.home.newBox(c.s)
	c.truth = newTruth(t, c.home.db.Super)
	c.channel = c.s.api.channel(t, "general")
	c.agent = c.s.api.agent(t, "witness", c.channel)
	c.session = c.s.api.start(t, c.agent)
	c.box.record.await(c.s.api.post(t, c.channel, "before").GetId(), 1)
	c.s.api.settled(t)
	return c
}

// die is kill -9 of the standalone process, which must have lived until then: a window is exact only if nobody left it.
func (c *crash) die() {
	c.Helper()
	if !c.s.running() {
		_, last := c.s.lines()
		c.Fatalf("standalone ended before it was killed: %s", last)
	}
	c.s.kill()
}

// rise starts the next life of the standalone process and leads everybody there.
func (c *crash) rise() {
	c.Helper()
	c.riseFor(c.box.follow)
}

func (c *crash) riseFor(lead func(*standalone)) {
	c.Helper()
	c.home.pg.open(host(c, c.home.db.Server.AdminDSN))
	c.s = c.home.start(crashArgs()...)
	lead(c.s)
}

// end waits until nothing is owed and holds the record against Postgres. It returns how often the message was taken.
func (c *crash) end(message string) int {
	c.Helper()
	c.box.record.await(message, 1)
	c.s.api.settled(c)
	c.truth.check(c.box.record, c.agent, c.channel)
	return len(c.box.record.of(message))
}

// stored is how many references the process has put into the queue.
func (c *crash) stored() float64 {
	c.Helper()
	return metrics(c, c.s.metrics, "compass_fabric_publish_duration_seconds_count", `outcome="stored"`)
}

// generations is how often each generation of the agent took a message.
func (c *crash) generations(message string) map[int64]int {
	c.Helper()
	out := map[int64]int{}
	for _, t := range c.box.record.of(message) {
		out[t.Generation]++
	}
	return out
}

// Killed after the commit and before anybody could publish: the answer of Postgres never reached the process. The poster,
// who heard nothing, tries again under the same client id; the message is one, and delivered once.
//
// Holds REQ-001: nothing but the committed row is left, and it is enough.
//
// Holds REQ-003: before the process knows of the commit it publishes nothing.
func TestKilledBetweenCommitAndPublish(t *testing.T) {
	t.Parallel()
	c := newCrash(t)
	const words = "committed and never told"
	before := c.stored()
	c.home.pg.onMark(words, holdAnswer)
	ctx, hangUp := context.WithCancel(t.Context())
	heard := make(chan error, 1)
	go func() {
		_, err := c.s.api.comms.PostMessage(ctx, connect.NewRequest(posting(c.channel, words)))
		heard <- err
	}()
	var id string
	await(t, "the post is committed", func() string {
		id = c.truth.message(words)
		return unless(id != "", "no row")
	})
	if taken, published := len(c.box.record.of(id)), c.stored()-before; taken != 0 || published != 0 {
		t.Fatalf("published %v times and taken %d times before the process knew of the commit", published, taken)
	}
	c.die()
	if err := <-heard; err == nil {
		t.Fatal("the poster was answered: this is not the window")
	}
	hangUp()
	c.rise()
	again := call(t, c.s.api.comms.PostMessage, posting(c.channel, words))
	if !again.GetDuplicate() || again.GetMessage().GetId() != id {
		t.Errorf("the second try made %v: want the first one's %s", again, id)
	}
	if n := c.end(id); n != 1 {
		t.Errorf("taken %d times: want 1", n)
	}
}

// Killed after the reference was stored and before anything was read for it: every other connection to Postgres stood still
// from the moment of the commit. Then the broker's files are thrown away as well.
//
// Holds REQ-001, REQ-002: whatever JetStream remembered is gone, and nobody asks for it.
func TestKilledBetweenPublishAndDrain(t *testing.T) {
	t.Parallel()
	c := newCrash(t)
	const words = "published and never drained"
	before := c.stored()
	c.home.pg.onMark(words, holdOthers)
	id := c.s.api.post(t, c.channel, words).GetId()
	await(t, "the reference is stored", func() string { return unless(c.stored() > before, "not yet") })
	if got := len(c.box.record.of(id)); got != 0 {
		t.Fatalf("taken %d times though nothing could be read: this is not the window", got)
	}
	c.die()
	must(t, os.RemoveAll(filepath.Join(c.home.data(), "nats", "js")))
	c.rise()
	if n := c.end(id); n != 1 {
		t.Errorf("taken %d times: want 1", n)
	}
}

// Killed after the command was sent and before the Runner heard it.
func TestKilledBetweenDispatchAndTake(t *testing.T) {
	t.Parallel()
	c := newCrash(t)
	sent := func() float64 {
		return metrics(t, c.s.metrics, "compass_delivery_sent_total", `kind="deliver"`)
	}
	before := sent()
	c.box.nats.hold(down)
	id := c.s.api.post(t, c.channel, "sent and never heard").GetId()
	await(t, "the command is sent", func() string { return unless(sent() > before, "not yet") })
	c.die()
	if got := len(c.box.record.of(id)); got != 0 {
		t.Fatalf("taken %d times though nothing was heard: this is not the window", got)
	}
	c.rise()
	if n := c.end(id); n != 1 {
		t.Errorf("taken %d times: want 1", n)
	}
}

// Killed after the agent consumed the message and before anybody heard the ack. The session outlives the process, so its
// generation is the same and the message is not sent to it again.
func TestKilledBetweenDispatchAndAck(t *testing.T) {
	t.Parallel()
	c := newCrash(t)
	c.box.mute()
	id := c.s.api.post(t, c.channel, "consumed and never acknowledged").GetId()
	c.box.record.await(id, 1)
	owed := call(t, c.s.api.admin.ListOwed, &compassv1.ListOwedRequest{}).GetOwed()
	if len(owed) != 1 || owed[0].GetCount() != 1 {
		t.Fatalf("owed = %v: this is not the window", owed)
	}
	c.die()
	// Still no ack leaves the Runner, so the next worker sends the message again; what it sends after it comes after it.
	c.riseFor(c.box.followUnacked)
	after := c.s.api.post(t, c.channel, "after").GetId()
	c.box.record.await(after, 1)
	await(t, "the next life sends the message again, and the one after it", func() string {
		sent := metrics(t, c.s.metrics, "compass_delivery_sent_total", `kind="deliver"`)
		return unless(sent >= 2, "%v commands", sent)
	})
	c.box.follow(c.s)
	if n := c.end(id); n != 1 {
		t.Errorf("taken %d times: want 1, by a session that outlived the process", n)
	}
}

// The Runner killed after its agent consumed the message and before it said so. A Runner keeps nothing but its key: its
// next process is another incarnation, the agent's next session another generation, and to that the message is new. What
// was acknowledged before is not.
//
// Holds REQ-052: what was not acknowledged stayed owed.
func TestRunnerKilledBetweenTakeAndAck(t *testing.T) {
	t.Parallel()
	c := newCrash(t)
	c.box.mute()
	id := c.s.api.post(t, c.channel, "consumed by a Runner that died").GetId()
	c.box.record.await(id, 1)
	c.box.kill()
	c.box.follow(c.s)
	c.box.again()
	if next := c.s.api.start(t, c.agent); next == c.session {
		t.Errorf("session %s outlived its Runner", next)
	}
	c.box.record.await(id, 2)
	if n := c.end(id); n != 2 {
		t.Errorf("taken %d times: want once per generation", n)
	}
	if lives := c.generations(id); len(lives) != 2 {
		t.Errorf("taken in generations %v: want two, once in each", lives)
	}
	if lives := c.generations(c.truth.message("before")); len(lives) != 1 {
		t.Errorf("what was acknowledged was sent again: %v", lives)
	}
}

// Killed twice while people post, wherever it happens to be, and its Runner once: everybody tries again under the same
// client id, and nothing is lost, doubled in a generation, or out of order.
//
// Holds REQ-001.
func TestKilledWhilePeoplePost(t *testing.T) {
	t.Parallel()
	c := newCrash(t)
	const people, posts = 3, 16
	front := newProxy(t, host(t, c.s.url)) // where people go, whichever life of the process is behind it
	everybody := newAPI("http://"+front.address(), c.s.token)
	said := make(chan string)
	var talk sync.WaitGroup
	for person := range people {
		talk.Go(func() {
			for n := range posts {
				words := fmt.Sprintf("person %d says %d", person, n)
				insist(t.Context(), everybody, posting(c.channel, words))
				select {
				case said <- words:
				case <-t.Context().Done():
				}
			}
		})
	}
	go func() { talk.Wait(); close(said) }()
	count := 0
	for range said {
		switch count++; count {
		case people * posts / 4, people * posts / 2:
			c.die()
			c.rise()
			front.open(host(t, c.s.url))
		case people * posts * 3 / 4:
			c.box.kill()
			c.box.again()
			c.s.api.start(t, c.agent)
		}
	}
	for person := range people {
		for n := range posts {
			c.box.record.await(c.truth.message(fmt.Sprintf("person %d says %d", person, n)), 1)
		}
	}
	c.s.api.settled(t)
	c.truth.check(c.box.record, c.agent, c.channel)
}

// insist posts until it is answered. It may be called beside the test.
func insist(ctx context.Context, a *api, q *compassv1.PostMessageRequest) {
	for ctx.Err() == nil {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := a.comms.PostMessage(try, connect.NewRequest(q))
		cancel()
		if err == nil {
			return
		}
		select {
		case <-time.After(glance):
		case <-ctx.Done():
		}
	}
}
