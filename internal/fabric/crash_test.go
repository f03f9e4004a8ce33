package fabric_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// The sizes of the schedule: one here, 20 seeds in the crash stage of CI, 400 messages in make chaos.
var (
	crashSeeds    = flag.Int("crash.seeds", 1, "seeds of the crash schedule")
	crashMessages = flag.Int("crash.messages", 60, "messages of one seed")
)

const (
	envDir  = "COMPASS_FABRIC_TEST_DIR"
	envPort = "COMPASS_FABRIC_TEST_PORT"
	envSeed = "COMPASS_FABRIC_TEST_SEED"

	// So many processes have to die on a row before it is parked. It must be more than chance takes from an innocent one: a
	// redelivery comes first, so on a busy machine the next kill often hits the row that the last one hit.
	crashMaxDeliver = 5

	crashConnected = "connected" // said by a worker that consumes
)

func crashConfig(dir, port string) fabric.Config {
	return fabric.Config{
		Name: "crash", URLs: []string{"nats://127.0.0.1:" + port}, Credentials: fabric.Credentials{File: filepath.Join(dir, "creds")},
		Stream: fabrictest.Stream, Manage: true, Spec: fabric.StreamSpec{AckWait: 500 * time.Millisecond},
		MaxDeliver: crashMaxDeliver, Backoff: []time.Duration{50 * time.Millisecond}, PublishTimeout: 2 * time.Second,
		Inspect: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Link: fabric.Link{Window: time.Minute, ReconnectWait: 20 * time.Millisecond, Settle: 20 * time.Millisecond},
	}
}

// crashServer runs until it is killed.
func crashServer() error {
	if _, err := embedded.Start(embedded.Config{
		Dir: os.Getenv(envDir), Listen: "127.0.0.1:" + os.Getenv(envPort), Logger: slog.New(slog.DiscardHandler),
	}); err != nil {
		return err
	}
	select {}
}

// crashWorker consumes until it is killed or kills itself: on rows that say so, at random, and at random between a dead
// letter and its ack.
func crashWorker() error {
	dir := os.Getenv(envDir)
	seed, err := strconv.ParseUint(os.Getenv(envSeed), 10, 64)
	if err != nil {
		return err
	}
	dice := &dice{rng: rand.New(rand.NewPCG(seed, 1))} //nolint:gosec // a schedule, not a secret
	cfg := crashConfig(dir, os.Getenv(envPort))
	cfg.Options = []nats.Option{nats.SetCustomDialer(tripwire{dice})}
	f, err := fabric.New(cfg)
	if err != nil {
		return err
	}
	done, err := os.OpenFile(filepath.Join(dir, "done"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.SubscribeKind(context.Background(), fabric.KindMessagePosted, func(_ context.Context, ref fabric.EventRef) error {
		switch kind, _, _ := strings.Cut(ref.RowID, "-"); kind {
		case "kills":
			os.Exit(1)
		case "fails":
			return fabrictest.ErrBoom
		case "poison":
			return poison()
		}
		dice.dieOneIn(40)
		if _, err := done.WriteString(ref.RowID + "\n"); err != nil {
			os.Exit(3)
		}
		dice.dieOneIn(40)
		return nil
	}); err != nil {
		return err
	}
	fmt.Println(crashConnected) //nolint:forbidigo // the word to its parent
	select {}
}

type dice struct {
	mu  sync.Mutex
	rng *rand.Rand
}

func (d *dice) dieOneIn(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rng.IntN(n) == 0 {
		os.Exit(1)
	}
}

// tripwire dials connections that may kill the process when it is about to store a dead letter, and when it is about to ack
// what it has just parked.
type tripwire struct{ dice *dice }

func (w tripwire) Dial(network, address string) (net.Conn, error) {
	c, err := net.DialTimeout(network, address, 2*time.Second)
	if err != nil {
		return nil, err
	}
	return &trippedConn{Conn: c, dice: w.dice}, nil
}

type trippedConn struct {
	net.Conn
	dice   *dice
	parked bool
}

func (c *trippedConn) Write(p []byte) (int, error) {
	if c.parked && bytes.Contains(p, []byte("$JS.ACK")) {
		c.parked = false
		c.dice.dieOneIn(3)
	}
	if bytes.Contains(p, []byte("PUB compass.dlq.")) {
		c.dice.dieOneIn(6)
		c.parked = true
	}
	return c.Conn.Write(p)
}

// schedule is one seed.
type schedule struct {
	dir, port string
	rng       *rand.Rand

	running sync.WaitGroup

	mu       sync.Mutex
	starting *exec.Cmd // the worker, whether it consumes yet or not
	worker   *exec.Cmd // that consumes; nil while the next one starts
	server   *exec.Cmd
	stopped  bool
	deaths   int // of workers
	kills    int // of servers
}

// Holds REQ-129. Lessons B9, B11, operator 49: whatever dies whenever, nothing is lost, every dead letter is there once, and nobody
// innocent is among them.
func TestCrashSchedule(t *testing.T) {
	t.Parallel()
	for seed := range *crashSeeds {
		t.Run(strconv.Itoa(seed), func(t *testing.T) {
			t.Parallel()
			runSchedule(t, uint64(seed)+1) //nolint:gosec // a small number
		})
	}
}

func runSchedule(t *testing.T, seed uint64) {
	s := &schedule{dir: t.TempDir(), port: strconv.Itoa(freePort(t)), rng: rand.New(rand.NewPCG(seed, 0))} //nolint:gosec // as above
	t.Cleanup(s.end)
	s.keys(t)
	s.startServer(t)
	f := open(t, crashConfig(s.dir, s.port))
	s.running.Go(func() { s.superviseWorker(t, seed) })
	stop := make(chan struct{})
	var chaos sync.WaitGroup
	chaos.Go(func() { s.chaos(t, stop) })
	sent := func() []string {
		defer chaos.Wait()
		defer close(stop)
		return s.publishAll(t, f)
	}()
	s.runsEmpty(t, f)
	s.check(t, f, sent)
	s.end() // whoever counts the deaths has stopped now
	t.Logf("seed %d: %d messages, %d deaths of the worker, %d of the server: none lost, each dead letter once, nobody innocent",
		seed, len(sent), s.deaths, s.kills)
}

// runsEmpty waits for as long as the queue makes progress.
func (s *schedule) runsEmpty(t *testing.T, f *fabric.Fabric) {
	t.Helper()
	spec := fabric.StreamSpec{Name: fabrictest.Stream, AckWait: 500 * time.Millisecond}
	left, since := ^uint64(0), time.Now()
	fabrictest.EventuallyWithin(t, 5*time.Minute, "the queue runs empty", func() bool {
		queue, _, consumer, err := f.ObserveStream(t.Context(), spec)
		if err == nil && queue.Messages < left {
			left, since = queue.Messages, time.Now()
		}
		if time.Since(since) > 2*time.Minute { // crashMaxDeliver processes die on the slowest row
			t.Fatalf("no progress for two minutes: %+v %+v, %v", queue, consumer, err)
		}
		return err == nil && queue.Exists && queue.Messages == 0
	})
}

// end kills what runs and waits for it.
func (s *schedule) end() {
	s.mu.Lock()
	s.stopped = true
	kill(s.starting)
	kill(s.server)
	s.mu.Unlock()
	s.running.Wait()
}

// check compares what was published with what was done and what was parked.
func (s *schedule) check(t *testing.T, f *fabric.Fabric, sent []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "done"))
	if err != nil {
		t.Fatal(err)
	}
	done := map[string]bool{}
	for row := range strings.Lines(string(text)) {
		done[strings.TrimSpace(row)] = true
	}
	parked := map[string]int{}
	err = f.List(t.Context(), fabrictest.Stream, "", func(d fabric.DeadLetter) bool {
		row := d.Ref.RowID
		if row == "" {
			row = string(d.Body) // undecodable ones are their row's name
		}
		parked[row]++
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range sent {
		bad := !strings.HasPrefix(row, "good-")
		switch {
		case bad && parked[row] != 1:
			t.Errorf("%s was parked %d times, want once", row, parked[row])
		case !bad && parked[row] != 0:
			t.Errorf("%s is innocent and was parked", row)
		case !bad && !done[row]:
			t.Errorf("%s was lost", row)
		}
	}
	total := 0
	for _, n := range parked {
		total += n
	}
	bad := 0
	for _, row := range sent {
		if !strings.HasPrefix(row, "good-") {
			bad++
		}
	}
	if total != bad {
		t.Errorf("%d dead letters, want %d", total, bad)
	}
}

// publishAll publishes every row until it is stored; one in ten is no reference at all.
func (s *schedule) publishAll(t *testing.T, f *fabric.Fabric) []string {
	t.Helper()
	nc, err := nats.Connect("nats://127.0.0.1:"+s.port, nats.UserCredentials(filepath.Join(s.dir, "creds")),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond)) // it may just have been killed
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var sent []string
	for i := range *crashMessages {
		row := s.kind(i) + "-" + strconv.Itoa(i)
		sent = append(sent, row)
		fabrictest.Eventually(t, "publish "+row, func() bool {
			if !strings.HasPrefix(row, "garbage-") {
				return publish(t, f, row) == nil
			}
			subject := "compass.q.main." + fabrictest.TenantA + ".message_posted"
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			m := &nats.Msg{Subject: subject, Data: []byte(row), Header: nats.Header{nats.MsgIdHdr: {row}}}
			answer, err := nc.RequestMsgWithContext(ctx, m)
			return err == nil && bytes.Contains(answer.Data, []byte(`"seq"`))
		})
	}
	return sent
}

func (s *schedule) kind(i int) string {
	switch {
	case i%30 == 7: // the slowest: MaxDeliver processes have to die on it
		return "kills"
	case i%10 == 3:
		return "garbage"
	case i%10 == 5:
		return "fails"
	case i%10 == 9:
		return "poison"
	}
	return "good"
}

// chaos kills the worker at random until it is told to stop, and the server twice, if need be after that. A worker is let
// connect first: one that is killed while it starts proves nothing, and on a slow machine none would ever do anything else.
func (s *schedule) chaos(t *testing.T, stop <-chan struct{}) {
	servers := 2
	for {
		over := stop
		if servers > 0 {
			over = nil
		}
		select {
		case <-over:
			return
		case <-time.After(time.Duration(50+s.rng.IntN(350)) * time.Millisecond):
		}
		if servers > 0 && s.rng.IntN(4) == 0 {
			servers--
			s.mu.Lock()
			kill(s.server)
			s.server = nil
			s.kills++
			s.mu.Unlock()
			<-time.After(time.Duration(s.rng.IntN(200)) * time.Millisecond)
			s.startServer(t)
			continue
		}
		s.mu.Lock()
		kill(s.worker)
		s.mu.Unlock()
	}
}

func kill(c *exec.Cmd) {
	if c != nil && c.Process != nil {
		_ = c.Process.Kill()
	}
}

func (s *schedule) command(role string, more ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], "-test.run=^$")
	c.Env = append(os.Environ(), envRole+"="+role, envDir+"="+s.dir, envPort+"="+s.port)
	c.Env = append(c.Env, more...)
	c.Stderr = os.Stderr
	return c
}

// startServer starts the server, and again when it ends without having been killed, as a pod would be: the port that a killed
// server leaves is one that the machine gives to connections, and now and then one of them has it when the next server comes.
func (s *schedule) startServer(t *testing.T) {
	c := s.command("server")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	if err := c.Start(); err != nil {
		t.Errorf("start server: %v", err)
		return
	}
	s.server = c
	s.running.Go(func() {
		_ = c.Wait()
		s.mu.Lock()
		died := s.server == c
		s.mu.Unlock()
		if died {
			s.startServer(t)
		}
	})
}

// superviseWorker starts the worker again whenever it is dead, as a Deployment does.
func (s *schedule) superviseWorker(t *testing.T, seed uint64) {
	for life := uint64(0); ; life++ {
		c := s.command("worker", envSeed+"="+strconv.FormatUint(seed*1000+life, 10))
		s.mu.Lock()
		if s.stopped {
			s.mu.Unlock()
			return
		}
		connected, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		s.starting = c
		s.mu.Unlock()
		if err != nil {
			t.Errorf("start worker: %v", err)
			return
		}
		if text, _ := bufio.NewReader(connected).ReadString('\n'); text == crashConnected+"\n" { // else it is dead already
			s.mu.Lock()
			s.worker = c
			s.mu.Unlock()
		}
		err = c.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.ExitCode() > 1 {
			t.Errorf("the worker ended by itself: %v", err)
			return
		}
		s.mu.Lock()
		s.worker = nil
		s.deaths++
		s.mu.Unlock()
	}
}

// keys prepares the identity that the server will find, so that this process can make credentials.
func (s *schedule) keys(t *testing.T) {
	t.Helper()
	keys, store, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(s.dir, "keys")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range store {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	key := userKey(t)
	user, err := keys.Compass.StandaloneUser(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	text, err := fabric.CredsFile(user, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "creds"), text, 0o600); err != nil {
		t.Fatal(err)
	}
}
