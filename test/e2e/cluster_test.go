package e2e

import (
	"cmp"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

const stream = "main"

// cluster is what an operator would have made: a database with a tenant, a broker with the stream, and the files that let
// processes in. Each process has a proxy of its own to the broker.
type cluster struct {
	tb         testing.TB
	world      *worldtest.World
	tenant     *worldtest.Tenant
	secrets    *secrets
	truth      *truth
	dir        string // of the broker
	address    string // of the broker
	broker     *embedded.Server
	tick       time.Duration // the worker's floor tick; default: that of the product
	lease      time.Duration // the stream's lease; default: that of the product
	commandKey string        // seed of the key that signs commands of those that start from now on; default: that of settings
	// platform is the token of the platform's admin, once somebody needed it.
	platform string
	// programs are builds for those that start from now on; default: the program under test.
	programs struct{ worker, runner string }
}

func newCluster(tb testing.TB) *cluster {
	tb.Helper()
	c := &cluster{tb: tb, world: worldtest.New(tb), secrets: &secrets{}, dir: tb.TempDir(), address: closedPort(tb)}
	c.truth = newTruth(tb, c.world.Database.Super)
	c.tenant = c.world.Tenant(tb, "acme")
	c.secrets.add("the admin's token", c.tenant.Token)
	c.openBroker()
	tb.Cleanup(func() { c.broker.Stop() })
	return c
}

// openBroker starts the broker and makes the stream, which in Kubernetes is the operator's work.
func (c *cluster) openBroker() {
	c.tb.Helper()
	var err error
	c.broker, err = embedded.Start(embedded.Config{Dir: c.dir, Listen: c.address, Logger: slog.New(slog.DiscardHandler)})
	must(c.tb, err)
	c.makeStream(stream)
}

func (c *cluster) makeStream(stream string) {
	c.tb.Helper()
	quiet := slog.New(slog.DiscardHandler)
	credentials, err := c.broker.Standalone()
	must(c.tb, err)
	operator, err := fabric.Open(c.tb.Context(), fabric.Config{Name: "operator", InProcess: c.broker, Credentials: credentials, Stream: stream, Logger: quiet})
	must(c.tb, err)
	spec := fabric.StreamSpec{Name: stream}
	await(c.tb, "the stream is made", func() string { // tried again, as the operator does
		_, _, err1 := operator.EnsureStream(c.tb.Context(), spec, false)
		_, _, err2 := operator.EnsureDeadLetters(c.tb.Context(), spec, false)
		_, _, err3 := operator.EnsureConsumer(c.tb.Context(), spec, false)
		err := errors.Join(err1, err2, err3)
		return unless(err == nil, "%v", err)
	})
	must(c.tb, operator.Close(c.tb.Context()))
}

// credentials writes the file with which a process of a role enters the broker.
func (c *cluster) credentials(dir string, role fabric.Role, id string) (path string) {
	c.tb.Helper()
	key, err := fabric.NewUserSeed()
	must(c.tb, err)
	c.secrets.add("a NATS seed", string(key.Text()))
	user, err := c.broker.Keys().Compass.Issuer(role).User(key.Public(), id, time.Hour, time.Now())
	must(c.tb, err)
	content, err := fabric.CredsFile(user, key)
	must(c.tb, err)
	return put(c.tb, dir, "nats.creds", string(content))
}

// server is a `compass server`.
type server struct {
	*process
	url, metrics string
	pg, nats     *proxy
	api          *api
	dir          string // of its files
}

// behind is a database as one reaches it through a proxy.
func behind(tb testing.TB, db *storetest.Database, pg *proxy) *storetest.Database {
	tb.Helper()
	through := *db
	for _, dsn := range []*string{&through.App, &through.System, &through.Provision} {
		u, err := url.Parse(*dsn)
		must(tb, err)
		u.Host = pg.address()
		*dsn = u.String()
	}
	return &through
}

// postgres is a process's own proxy to the database.
func (c *cluster) postgres() *proxy {
	c.tb.Helper()
	return newProxy(c.tb, host(c.tb, c.world.Database.App))
}

func (c *cluster) settings(role fabric.Role, id string, pg, nats *proxy) (config.Config, string) {
	c.tb.Helper()
	dir := c.tb.TempDir()
	s := settings(c.tb, c.secrets, behind(c.tb, c.world.Database, pg), "nats://"+nats.address())
	s.Fabric.CredsFile = c.credentials(dir, role, id)
	if c.commandKey != "" {
		c.secrets.add("another command key", c.commandKey)
		s.Fabric.CommandKeysFile = putYAML(c.tb, dir, "command-keys.yaml", map[string]any{
			"keys": []map[string]string{{"id": "k1", "seed": c.commandKey}},
		})
	}
	return s, dir
}

func (c *cluster) server(name string) *server {
	c.tb.Helper()
	return c.serverBehind(c.postgres(), newProxy(c.tb, c.address), name).opens(c.tenant.Token)
}

// serverBehind is one that may not get to what it needs.
func (c *cluster) serverBehind(pg, nats *proxy, name string) *server {
	c.tb.Helper()
	s := &server{pg: pg, nats: nats}
	file, dir := c.settings(fabric.RoleServer, "", s.pg, s.nats)
	s.dir = dir
	file.Fabric.IssuerFile = c.issuers(dir)
	s.process = launch(c.tb, c.secrets, name, "server", "--config", putYAML(c.tb, dir, "config.yaml", file))
	s.metrics = s.listening("metrics and health")
	return s
}

// issuers writes the file with which Servers let Runners into the broker.
func (c *cluster) issuers(dir string) (path string) {
	c.tb.Helper()
	runners := c.broker.Keys().Runners
	seed := string(runners.Scoped[fabric.RoleRunner].Text())
	c.secrets.add("the issuer's seed", seed)
	return putYAML(c.tb, dir, "issuers.yaml", map[string]any{
		"fleets": map[string]config.FleetIssuer{naming.SharedFleet: {Account: runners.Identity.Public(), Seed: seed}},
	})
}

// opens waits until a Server takes requests.
func (s *server) opens(token string) *server {
	s.tb.Helper()
	s.url = "http://" + s.listening("Connect API")
	s.api = newAPI(s.url, token)
	return s
}

// worker is a `compass delivery`.
type worker struct {
	*process
	metrics  string
	pg, nats *proxy
}

func (c *cluster) worker(name string) *worker {
	c.tb.Helper()
	return c.workerOf(stream, name)
}

// workerOf is a worker of another stream than main.
func (c *cluster) workerOf(stream, name string) *worker {
	c.tb.Helper()
	return c.workerBehind(c.postgres(), newProxy(c.tb, c.address), stream, name)
}

// workerBehind is one that may not get to what it needs.
func (c *cluster) workerBehind(pg, nats *proxy, stream, name string) *worker {
	c.tb.Helper()
	w := &worker{pg: pg, nats: nats}
	file, dir := c.settings(fabric.RoleWorker, stream, w.pg, w.nats)
	file.Delivery = config.Delivery{Stream: stream, Holder: name, FloorTick: config.Duration(c.tick), Lease: config.Duration(c.lease)}
	w.process = launchOf(c.tb, cmp.Or(c.programs.worker, program), c.secrets, name, "delivery", "--config", putYAML(c.tb, dir, "config.yaml", file))
	w.metrics = w.listening("metrics and health")
	return w
}

// ready reports what /readyz answers, "" for yes.
func ready(tb testing.TB, address string) string {
	tb.Helper()
	return unless(page(tb, "http://"+address+"/readyz") == "ok\n", "not ready")
}

// serves waits until a worker is the stream's writer and has swept.
func (w *worker) serves() *worker {
	w.tb.Helper()
	await(w.tb, w.name+" serves the stream", func() string { return ready(w.tb, w.metrics) })
	return w
}

// box enrols a Runner, with the agent record, at a Server.
func (c *cluster) box(s *server) *box {
	c.tb.Helper()
	return startBox(c.tb, c.secrets, place{
		dir: c.tb.TempDir(), token: c.enrolment(s), server: s.url, nats: "nats://" + c.address, program: c.programs.runner,
	})
}

// enrolment is a new token for a Runner.
func (c *cluster) enrolment(s *server) (token string) {
	c.tb.Helper()
	if c.platform == "" {
		c.platform = c.world.Platform(c.tb).Token
	}
	token = call(c.tb, newAPI(s.url, c.platform).admin.IssueRunnerToken, &compassv1.IssueRunnerTokenRequest{}).GetToken()
	c.secrets.add("an enrolment token", token)
	return token
}

// lease is the row of the stream's writer.
type lease struct {
	Holder string
	Epoch  int64
	Clean  bool
}

const sqlLease = `select holder, epoch, clean from compass.delivery_leases where stream = $1`

func (h *truth) lease() lease {
	h.tb.Helper()
	rows, err := h.conn.Query(h.tb.Context(), sqlLease, stream)
	must(h.tb, err)
	l, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[lease])
	must(h.tb, err)
	return l
}

// Servers are all alike: what is posted at one is delivered by the worker and acknowledged through another, the poster's
// being gone. Each reference is claimed by the one worker.
//
// Holds REQ-111: a message posted at one Server is read, and found as a duplicate, at another, and nothing of a Server that
// died was needed.
//
// Holds REQ-083, REQ-112, REQ-137: the one worker claims each reference, whichever Server published it; a Runner whose
// connection was cut is reached again under the same subject.
func TestAnyServerServes(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := c.server("server A"), c.server("server B")
	w := c.worker("worker 1").serves()
	box := c.box(b)
	channel := a.api.channel(t, "general")
	agent := a.api.agent(t, "witness", channel)
	session := b.api.start(t, agent)

	first := a.api.post(t, channel, "posted at A").GetId()
	await(t, "the reference is claimed", func() string {
		return unless(metrics(t, w.metrics, "compass_fabric_consumed_total", `outcome="acked"`) == 1, "not yet")
	})
	a.kill()
	box.record.await(first, 1)
	if again := call(t, b.api.comms.PostMessage, posting(channel, "posted at A")); !again.GetDuplicate() || again.GetMessage().GetId() != first {
		t.Errorf("posted again at B: %v: want the duplicate of %s", again, first)
	}
	list := call(t, b.api.comms.ListMessages, &compassv1.ListMessagesRequest{ChannelId: channel}).GetMessages()
	if len(list) != 1 || list[0].GetId() != first {
		t.Errorf("B reads %v: want the one message", list)
	}

	box.nats.cut()
	second := b.api.post(t, channel, "posted at B").GetId()
	box.record.await(second, 1)
	b.api.settled(t)
	c.truth.check(box.record, agent, channel)
	if n := metrics(t, w.metrics, "compass_fabric_consumed_total"); n != 2 {
		t.Errorf("%v references were claimed: want one per message that was made", n)
	}
	for _, line := range box.record.lines() {
		if line.Session != session {
			t.Errorf("taken by session %s: want %s to have lived through all of it", line.Session, session)
		}
	}
	if code := b.terminate(); code != 0 {
		t.Errorf("the Server's exit code = %d after SIGTERM", code)
	}
	if code := box.terminate(); code != 0 {
		t.Errorf("the Runner's exit code = %d after SIGTERM", code)
	}
}

// A stream has one writer: a second worker waits for the lease, not even connected to the broker. Killed, the first is
// followed when its lease is over; asked to stop, at once, because it says goodbye. What was owed meanwhile is delivered,
// once in the generation.
func TestWorkersFollowEachOther(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server("server")
	w1 := c.worker("worker 1").serves()
	box := c.box(s)
	channel := s.api.channel(t, "general")
	agent := s.api.agent(t, "witness", channel)
	s.api.start(t, agent)
	held := c.truth.lease()

	w2 := c.worker("worker 2")
	await(t, "the second waits", func() string {
		return unless(w2.logged(map[string]any{"msg": "Waiting for the lease"}), "not yet")
	})
	box.record.await(s.api.post(t, channel, "with two workers").GetId(), 1)
	s.api.settled(t)
	if ready(t, w2.metrics) == "" || w2.nats.connections() != 0 {
		t.Errorf("the waiting worker is ready, or has %d connections to the broker: want neither", w2.nats.connections())
	}
	if now := c.truth.lease(); now != held {
		t.Errorf("the lease went from %v to %v while its holder was well", held, now)
	}

	w1.kill()
	meanwhile := s.api.post(t, channel, "with no worker").GetId()
	w2.serves()
	box.record.await(meanwhile, 1)
	s.api.settled(t)
	taken := c.truth.lease()
	if taken.Holder != "worker 2" || taken.Epoch <= held.Epoch {
		t.Errorf("the lease is %v: want worker 2 above epoch %d", taken, held.Epoch)
	}

	w3 := c.worker("worker 3")
	await(t, "the third waits", func() string {
		return unless(w3.logged(map[string]any{"msg": "Waiting for the lease"}), "not yet")
	})
	if code := w2.terminate(); code != 0 {
		t.Errorf("the worker's exit code = %d after SIGTERM", code)
	}
	if l := c.truth.lease(); !l.Clean && l.Holder == "worker 2" {
		t.Errorf("the lease is %v: want a goodbye, or the next holder already", l)
	}
	w3.serves()
	box.record.await(s.api.post(t, channel, "with the third").GetId(), 1)
	s.api.settled(t)
	c.truth.check(box.record, agent, channel)

	w4 := c.worker("worker 4")
	await(t, "the fourth waits", func() string {
		return unless(w4.logged(map[string]any{"msg": "Waiting for the lease"}), "not yet")
	})
	if code := w4.terminate(); code != 0 {
		t.Errorf("exit code = %d of a worker that was asked to stop while it waited", code)
	}
}

// A Server that cannot reach the broker goes on posting and stays ready. What it could not publish is counted, and the
// floor tick delivers it to a session that never restarted.
//
// Holds REQ-080, REQ-111, REQ-138.
func TestFloorTickDeliversWhatWasNeverPublished(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.tick = 3 * time.Second
	s := c.server("server")
	w := c.worker("worker 1").serves()
	box := c.box(s)
	channel := s.api.channel(t, "general")
	agent := s.api.agent(t, "witness", channel)
	s.api.start(t, agent)
	box.record.await(s.api.post(t, channel, "before").GetId(), 1)

	s.nats.refuse()
	id := s.api.post(t, channel, "never published").GetId()
	box.record.await(id, 1)
	await(t, "the publisher gives up", func() string {
		return unless(metrics(t, s.metrics, failuresFigure) == 1, "not yet")
	})
	if why := ready(t, s.metrics); why != "" {
		t.Error("a Server without its broker is not ready")
	}
	if n := metrics(t, w.metrics, "compass_fabric_consumed_total"); n != 1 {
		t.Errorf("%v references were claimed: want only the one of before", n)
	}
	if w.logged(map[string]any{"msg": "NATS connection lost"}) {
		t.Error("the worker lost its connection too: then not the tick but its reconnect was tried")
	}
	s.api.settled(t) // over Connect: the Runner has a second way
	c.truth.check(box.record, agent, channel)
}

// The broker dies with everything that it stored, and people post until nobody tries to publish any more. It costs time and
// no message: the worker sweeps when it is connected again.
//
// Holds REQ-001, REQ-002, REQ-138.
func TestBrokerLosesEverything(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.tick = time.Hour // it would find the messages too
	s := c.server("server")
	w := c.worker("worker 1").serves()
	box := c.box(s)
	channel := s.api.channel(t, "general")
	agent := s.api.agent(t, "witness", channel)
	s.api.start(t, agent)
	box.record.await(s.api.post(t, channel, "before").GetId(), 1)
	s.api.settled(t)

	c.broker.Stop()
	var ids []string
	for _, words := range []string{"one", "two", "three"} {
		ids = append(ids, s.api.post(t, channel, words).GetId())
	}
	await(t, "the publisher gives up", func() string {
		return unless(metrics(t, s.metrics, failuresFigure) == 3, "not yet")
	})
	must(t, os.RemoveAll(filepath.Join(c.dir, "js")))
	c.openBroker()
	for _, id := range ids {
		box.record.await(id, 1)
	}
	ids = append(ids, s.api.post(t, channel, "after").GetId())
	box.record.await(ids[3], 1)
	s.api.settled(t)
	c.truth.check(box.record, agent, channel)
	if !w.running() {
		t.Error("the worker did not survive the outage")
	}
}
