package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/runner"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// put writes a file that only its owner reads.
func put(tb testing.TB, dir, name, content string) (path string) {
	tb.Helper()
	path = filepath.Join(dir, name)
	must(tb, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// addPassword registers the password of a DSN.
func (s *secrets) addPassword(tb testing.TB, what, dsn string) {
	tb.Helper()
	u, err := url.Parse(dsn)
	must(tb, err)
	if password, ok := u.User.Password(); ok {
		s.add(what, password)
	}
}

// addFolder registers the content of every file of a folder that a process keeps its secrets in, but NATS's messages.
func (s *secrets) addFolder(tb testing.TB, dir string) {
	tb.Helper()
	seed := regexp.MustCompile(`[-_A-Za-z0-9+/=]{40,}`) // in a YAML file of several
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	must(tb, err)
	keys, err := filepath.Glob(filepath.Join(dir, "nats", "keys", "*"))
	must(tb, err)
	for _, file := range append(files, keys...) {
		content, err := os.ReadFile(file)
		if err != nil { // a folder
			continue
		}
		s.add(filepath.Base(file), string(content))
		for _, one := range seed.FindAllString(string(content), -1) {
			s.add(filepath.Base(file), one)
		}
	}
}

// home is one standalone deployment: its database, its folder, and the proxy to Postgres. Its process comes and goes.
type home struct {
	tb      testing.TB
	db      *storetest.Database
	pg      *proxy
	dir     string
	secrets *secrets
}

func newHome(tb testing.TB) *home {
	tb.Helper()
	db := storetest.NewDatabaseUnmade(tb)
	u, err := url.Parse(db.Server.AdminDSN)
	must(tb, err)
	h := &home{tb: tb, db: db, dir: tb.TempDir(), pg: newProxy(tb, u.Host), secrets: &secrets{}}
	h.secrets.addPassword(tb, "the password of the Postgres admin", u.String())
	u.Host = h.pg.address()
	put(tb, h.dir, "postgres", u.String())
	return h
}

func (h *home) data() string { return filepath.Join(h.dir, "data") }

func (h *home) args() []string {
	return []string{
		"standalone", "--data", h.data(), "--postgres-file", filepath.Join(h.dir, "postgres"), "--database", h.db.Name,
		"--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--log-level", "debug",
	}
}

// standalone is one life of the deployment.
type standalone struct {
	*process
	url, nats, metrics string
	token              string
	api                *api // as the platform's admin
}

var readyLine = regexp.MustCompile(`ready: Connect API at (\S+), token of the platform's admin in (\S+), NATS for Runners at (\S+)`)

// start runs `compass standalone` and waits until it is ready.
func (h *home) start(args ...string) *standalone {
	h.tb.Helper()
	s := &standalone{process: launch(h.tb, h.secrets, "standalone", append(h.args(), args...)...)}
	await(h.tb, "standalone is ready", func() string {
		if !s.running() {
			_, last := s.lines()
			h.tb.Fatalf("standalone ended: %s", last)
		}
		line := readyLine.FindSubmatch(s.read(s.out))
		if line == nil {
			return "not yet"
		}
		s.url, s.token, s.nats = string(line[1]), string(line[2]), string(line[3])
		return ""
	})
	s.metrics = s.listening("metrics and health")
	s.token = strings.TrimSpace(string(s.read(s.token)))
	s.api = newAPI(s.url, s.token)
	h.secrets.addFolder(h.tb, h.data())
	return s
}

// host is the address in a URL.
func host(tb testing.TB, address string) string {
	tb.Helper()
	u, err := url.Parse(address)
	must(tb, err)
	return u.Host
}

// box is a Runner as a process of its own, with a proxy on each of its two ways to a Server.
type box struct {
	*process
	web, nats *proxy
	record    record
	args      []string
}

// newBox enrols a Runner with the agent record.
func (h *home) newBox(s *standalone) *box {
	h.tb.Helper()
	token := call(h.tb, s.api.admin.IssueRunnerToken, &compassv1.IssueRunnerTokenRequest{}).GetToken()
	h.secrets.add("the enrolment token", token)
	return startBox(h.tb, h.secrets, place{dir: h.dir, token: token, server: s.url, nats: s.nats})
}

// place is where a Runner lives: its folder, token, the Server and broker that it speaks to, and its build, if it is not the
// program under test.
type place struct{ dir, token, server, nats, program string }

func startBox(tb testing.TB, known *secrets, at place) *box {
	tb.Helper()
	b := &box{
		web: newProxy(tb, host(tb, at.server)), nats: newProxy(tb, host(tb, at.nats)),
		record: record{tb: tb, file: filepath.Join(at.dir, "record")},
	}
	b.args = []string{
		"runner", "--server", "http://" + b.web.address(), "--nats-url", "nats://" + b.nats.address(), "--listen", "127.0.0.1:0",
		"--token-file", put(tb, at.dir, "enrolment", at.token), "--key-file", filepath.Join(at.dir, "runner-key"),
		"--agent", "record", "--record", b.record.file, "--log-level", "debug",
	}
	b.process = launchOf(tb, cmp.Or(at.program, program), known, "runner", b.args...)
	await(tb, "the Runner begins", func() string {
		return unless(b.logged(map[string]any{"msg": "Runner began"}), "not yet")
	})
	known.add("the Runner's key", string(b.read(filepath.Join(at.dir, "runner-key"))))
	return b
}

// again starts the Runner's next process: the same key and file, nothing else kept.
func (b *box) again() {
	b.tb.Helper()
	b.process = launch(b.tb, b.secrets, "runner", b.args...)
	await(b.tb, "the Runner begins again", func() string {
		return unless(b.logged(map[string]any{"msg": "Runner began"}), "not yet")
	})
}

// mute lets the Runner hear and not speak: it takes and consumes, and no ack leaves it.
func (b *box) mute() {
	b.web.hold(up)
	b.nats.hold(up)
}

// follow leads the Runner to a process's next life, with nothing held any more.
func (b *box) follow(s *standalone) {
	b.tb.Helper()
	b.web.open(host(b.tb, s.url))
	b.nats.open(host(b.tb, s.nats))
}

// followUnacked does so too, but lets none of its events leave: neither over the broker nor over Connect.
func (b *box) followUnacked(s *standalone) {
	b.tb.Helper()
	b.web.open(host(b.tb, s.url), &trap{mark: "RunnerService/SendEvent", act: holdSpeaker, stays: true})
	b.nats.open(host(b.tb, s.nats), &trap{mark: ".events", act: holdSpeaker, stays: true})
}

// record is the file in which the agent record leaves its only consequences.
type record struct {
	tb   testing.TB
	file string
}

func (r record) lines() (taken []runner.Taken) {
	r.tb.Helper()
	content, err := os.ReadFile(r.file)
	if os.IsNotExist(err) {
		return nil
	}
	must(r.tb, err)
	content = content[:bytes.LastIndexByte(content, '\n')+1] // the next line may be half there
	scan := bufio.NewScanner(bytes.NewReader(content))
	for scan.Scan() {
		var t runner.Taken
		must(r.tb, json.Unmarshal(scan.Bytes(), &t))
		taken = append(taken, t)
	}
	return taken
}

// of lists what was taken of one message.
func (r record) of(message string) []runner.Taken {
	r.tb.Helper()
	return slices.DeleteFunc(r.lines(), func(t runner.Taken) bool { return t.Message != message })
}

// await waits until a message was taken so many times.
func (r record) await(message string, times int) {
	r.tb.Helper()
	await(r.tb, "the agent takes "+message, func() string {
		got := len(r.of(message))
		return unless(got >= times, "taken %d times", got)
	})
}

// truth is Postgres, asked past the product.
type truth struct {
	tb   testing.TB
	conn *pgx.Conn
}

func newTruth(tb testing.TB, dsn string) *truth {
	tb.Helper()
	return &truth{tb: tb, conn: storetest.Connect(tb, dsn)}
}

const sqlMessage = `select id from compass.messages where client_id = $1`

// message is the id under a client id; "" where none is committed.
func (h *truth) message(client string) (id string) {
	h.tb.Helper()
	err := h.conn.QueryRow(h.tb.Context(), sqlMessage, client).Scan(&id)
	if err == pgx.ErrNoRows { //nolint:errorlint // pgx returns it bare
		return ""
	}
	must(h.tb, err)
	return id
}

const sqlDeliverable = `
select m.id, m.pos from compass.messages m
 where m.channel_id = $1 and m.author_id <> $2 and m.pos is not null order by m.pos`

const sqlBehind = `
select (select count(*) from compass.delivery_cursors c join compass.channel_heads h using (tenant_id, channel_id)
         where c.agent_id = $1 and c.channel_id = $2 and c.acked < h.last_pos)
     + (select count(*) from compass.owed_mentions o where o.agent_id = $1 and not o.done)
     + (select count(*) from compass.dead_letters d where d.recipient_id = $1)`

// check holds an agent's record against Postgres: everything deliverable in the channel was taken, in order, each message
// once per session generation, and nothing is left owed or set aside. It is called when nothing is owed any more.
func (h *truth) check(r record, agent, channel string) {
	h.tb.Helper()
	var behind int
	must(h.tb, h.conn.QueryRow(h.tb.Context(), sqlBehind, agent, channel).Scan(&behind))
	if behind != 0 {
		h.tb.Errorf("%d things are owed or set aside", behind)
	}
	type life struct {
		generation int64
		message    string
	}
	times, last, taken := map[life]int{}, map[int64]int64{}, map[string]bool{}
	for _, t := range r.lines() {
		taken[t.Message] = true
		if t.Channel != channel {
			continue
		}
		times[life{t.Generation, t.Message}]++
		if !t.Steer {
			if t.Pos <= last[t.Generation] {
				h.tb.Errorf("in generation %d position %d came after %d", t.Generation, t.Pos, last[t.Generation])
			}
			last[t.Generation] = t.Pos
		}
	}
	for l, n := range times {
		if n != 1 {
			h.tb.Errorf("message %s was taken %d times in generation %d", l.message, n, l.generation)
		}
	}
	rows, err := h.conn.Query(h.tb.Context(), sqlDeliverable, channel, agent)
	must(h.tb, err)
	var id string
	var pos int64
	_, err = pgx.ForEachRow(rows, []any{&id, &pos}, func() error {
		if !taken[id] {
			h.tb.Errorf("message %s at position %d was never taken", id, pos)
		}
		return nil
	})
	must(h.tb, err)
}
