package delivery

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// taken is one consequence at a session.
type taken struct {
	session string
	id      string
	pos     int64
	steer   bool
}

// box is every Runner there is: it takes commands as the protocol says, and tells what it holds.
type box struct {
	mu       sync.Mutex
	tell     func(fabric.RunnerAddr, *compassv1.RunnerState)
	held     map[string]map[string]int64 // session → channel
	gone     map[string]bool             // sessions that are not there (yet)
	away     map[string]bool             // Runners without a subscriber
	deaf     func(n int, cmd *compassv1.Command) bool
	mute     bool
	rejects  map[string]int // message → how often it is still rejected
	counts   map[string]int32
	seen     map[string]*compassv1.Fence
	proof    map[string]*compassv1.SessionsResponse
	applied  map[string]int64
	ackEach  bool
	ack      func(session, channel string, pos int64) // how a consequence is acknowledged
	ackSteer func(session string, c *compassv1.SessionCommand)
	onTake   func(cmd *compassv1.Command)
	taken    []taken
	commands []*compassv1.Command // as they came, also those that were refused
}

func newBox(tr *truth) *box {
	b := &box{held: map[string]map[string]int64{}, gone: map[string]bool{}, away: map[string]bool{},
		rejects: map[string]int{}, counts: map[string]int32{}, seen: map[string]*compassv1.Fence{},
		proof: map[string]*compassv1.SessionsResponse{}, applied: map[string]int64{}, ackEach: true}
	b.ack = func(session, channel string, pos int64) { tr.ack(tr.agentOf(session), channel, pos) }
	b.ackSteer = func(session string, c *compassv1.SessionCommand) { tr.ackCommand(session, c.GetN()) }
	return b
}

func (b *box) States(_ context.Context, _ string, fn func(fabric.RunnerAddr, *compassv1.RunnerState)) (fabric.Unsubscribe, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tell = fn
	return func() {}, nil
}

func (b *box) SendCommand(_ context.Context, to fabric.RunnerAddr, signed *compassv1.SessionsResponse) error {
	var cmd compassv1.Command
	if err := proto.Unmarshal(signed.GetBody(), &cmd); err != nil {
		return err
	}
	b.mu.Lock()
	b.commands = append(b.commands, &cmd)
	if b.away[to.ID] {
		b.mu.Unlock()
		return fabric.ErrRunnerGone
	}
	if b.deaf != nil && b.deaf(len(b.commands), &cmd) {
		b.mu.Unlock()
		return nil
	}
	state := b.take(&cmd, signed)
	tell, mute, hook := b.tell, b.mute, b.onTake
	b.mu.Unlock()
	if hook != nil {
		hook(&cmd)
	}
	if state != nil && !mute && tell != nil {
		tell(to, state)
	}
	return nil
}

func (b *box) take(cmd *compassv1.Command, signed *compassv1.SessionsResponse) *compassv1.RunnerState {
	state := &compassv1.RunnerState{RunnerId: cmd.GetRunnerId(), TenantId: cmd.GetTenantId(), SessionId: cmd.GetSessionId(), Generation: cmd.GetGeneration()}
	if seen := b.seen[cmd.GetTenantId()]; lower(cmd.GetFence(), seen) {
		state.Refused, state.Seen, state.SeenProof = true, seen, b.proof[cmd.GetTenantId()]
		return state
	}
	b.seen[cmd.GetTenantId()], b.proof[cmd.GetTenantId()] = cmd.GetFence(), signed
	if b.gone[cmd.GetSessionId()] {
		state.Gone = cmd.GetDeliver() != nil
		return state
	}
	if c := cmd.GetCommand(); c != nil {
		return b.apply(cmd.GetSessionId(), c)
	}
	d := cmd.GetDeliver()
	channel := d.GetMessage().GetChannelId()
	if b.held[cmd.GetSessionId()] == nil {
		b.held[cmd.GetSessionId()] = map[string]int64{}
	}
	at := b.held[cmd.GetSessionId()]
	ch := &compassv1.ChannelState{ChannelId: channel}
	id := d.GetMessage().GetId()
	switch {
	case d.GetPos() <= at[channel]:
	case d.GetPrev() != at[channel] && d.GetPrev() != 0:
		ch.Refused = true
	case b.rejects[id] > 0:
		b.rejects[id]--
		b.counts[id]++
		ch.Refused = true
		state.Rejected = append(state.Rejected, &compassv1.Rejected{ChannelId: channel, MessageId: id, Pos: d.GetPos(), Count: b.counts[id]})
	default:
		at[channel] = d.GetPos()
		b.taken = append(b.taken, taken{session: cmd.GetSessionId(), id: id, pos: d.GetPos()})
		if b.ackEach {
			b.ack(cmd.GetSessionId(), channel, d.GetPos())
			ch.Acked = d.GetPos()
		}
	}
	ch.Held = at[channel]
	state.Channels = []*compassv1.ChannelState{ch}
	return state
}

func (b *box) apply(session string, c *compassv1.SessionCommand) *compassv1.RunnerState {
	if c.GetN() > b.applied[session] {
		b.applied[session] = c.GetN()
		b.taken = append(b.taken, taken{session: session, id: c.GetMessage().GetId(), pos: c.GetMessage().GetPos(), steer: true})
		if b.ackEach {
			b.ackSteer(session, c)
		}
	}
	return nil
}

func lower(a, b *compassv1.Fence) bool {
	return a.GetClaim() < b.GetClaim() || a.GetClaim() == b.GetClaim() && a.GetLease() < b.GetLease()
}

// of lists what a session took, in order.
func (b *box) of(session string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := []string{}
	for _, t := range b.taken {
		if t.session == session {
			out = append(out, t.id)
		}
	}
	return out
}

func (b *box) sent() []*compassv1.Command {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.commands)
}

// state tells the worker something that a Runner would.
func (b *box) state(runner string, s *compassv1.RunnerState) {
	b.mu.Lock()
	tell := b.tell
	b.mu.Unlock()
	tell(fabric.RunnerAddr{Fleet: "shared", ID: runner}, s)
}

// queueLane is the queue lane: references reach the worker when a test says so.
type queueLane struct {
	mu        sync.Mutex
	handle    fabric.Handler
	reconnect func()
}

func (l *queueLane) Publish(context.Context, string, fabric.EventRef) error { return nil }

func (l *queueLane) Subscribe(context.Context, string, fabric.Handler) (fabric.Unsubscribe, error) {
	return func() {}, nil
}

func (l *queueLane) SubscribeKind(_ context.Context, _ fabric.EventKind, fn fabric.Handler) (fabric.Unsubscribe, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.handle = fn
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.handle = nil
	}, nil
}

func (l *queueLane) OnReconnect(fn func()) (fabric.Unsubscribe, error) {
	l.reconnect = fn
	return func() {}, nil
}

func (l *queueLane) ref(t *testing.T, tenant store.TenantID, row string) error {
	t.Helper()
	l.mu.Lock()
	fn := l.handle
	l.mu.Unlock()
	if fn == nil {
		t.Fatal("nobody takes references")
	}
	return fn(t.Context(), fabric.EventRef{Tenant: string(tenant), Kind: fabric.KindMessagePosted, RowID: row})
}

// rights are the leases of a worker that dies when a test says so.
type rights struct {
	truth   *truth
	mu      sync.Mutex
	lost    map[int]bool
	careful bool
	regains chan int
	raises  int
	dbs     []int
}

func (r *rights) Fence(db int) (store.Fence, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.truth.mu.Lock()
	defer r.truth.mu.Unlock()
	return r.truth.fence, !r.lost[db] && slices.Contains(r.dbs, db)
}

func (r *rights) Raise(_ context.Context, _ int, above int64) error {
	r.truth.mu.Lock()
	defer r.truth.mu.Unlock()
	r.raises++
	r.truth.fence.Epoch = max(r.truth.fence.Epoch+1, above+1)
	return nil
}

func (r *rights) Careful(int) bool { return r.careful }
func (r *rights) Held() []int {
	var held []int
	for _, db := range r.dbs {
		if _, ok := r.Fence(db); ok {
			held = append(held, db)
		}
	}
	return held
}
func (r *rights) Regained() <-chan int { return r.regains }

func (r *rights) lose(db int, lost bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost[db] = lost
}

// shelf keeps announcements.
type shelf struct {
	mu    sync.Mutex
	fails int
	kept  []fabric.DeadLetter
}

func (s *shelf) Announce(_ context.Context, _ string, d fabric.DeadLetter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails > 0 {
		s.fails--
		return fabric.ErrUnavailable
	}
	s.kept = append(s.kept, d)
	return nil
}

// ground is a worker on twins. It runs in a synctest bubble: time stands still while anything can move.
type ground struct {
	t      *testing.T
	truth  *truth
	box    *box
	lane   *queueLane
	rights *rights
	shelf  *shelf
	c      *Consumer
	stop   func() error
}

// unsigned opens a command as if its signature were right, unless it says "forged".
func unsigned(s *compassv1.SessionsResponse) (*compassv1.Command, error) {
	if s == nil || s.GetKeyId() == "forged" {
		return nil, fabric.ErrSignature
	}
	var cmd compassv1.Command
	return &cmd, proto.Unmarshal(s.GetBody(), &cmd)
}

func newGround(t *testing.T) *ground {
	t.Helper()
	tr := newTruth()
	tr.tenant(acme, 1)
	g := &ground{t: t, truth: tr, box: newBox(tr), shelf: &shelf{}}
	g.fresh()
	return g
}

// fresh is another worker on the same truth.
func (g *ground) fresh() {
	g.lane = &queueLane{}
	g.rights = &rights{truth: g.truth, lost: map[int]bool{}, regains: make(chan int, 1), dbs: []int{0}}
}

func (g *ground) run(change ...func(*Options)) {
	g.t.Helper()
	o := Options{Stream: "main", Writes: g.truth, Leases: g.rights, DeadLetters: g.shelf, OpenProof: unsigned}
	for _, fn := range change {
		fn(&o)
	}
	c, err := NewConsumer(g.truth, g.box, g.truth, g.lane, slog.New(slog.DiscardHandler), o)
	if err != nil {
		g.t.Fatal(err)
	}
	g.c = c
	ctx, cancel := context.WithCancel(g.t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	var result error
	g.stop = func() error {
		once.Do(func() {
			cancel()
			result = <-done
		})
		return result
	}
	g.t.Cleanup(func() { _ = g.stop() })
	synctest.Wait()
}

// pass lets time pass, and what it sets off come to rest.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func (g *ground) ref(m store.Message) {
	g.t.Helper()
	g.truth.mu.Lock()
	tenant := g.truth.channels[m.Channel].tenant
	g.truth.mu.Unlock()
	if err := g.lane.ref(g.t, tenant, m.ID); err != nil {
		g.t.Fatalf("reference of %s: %v", m.ID, err)
	}
	synctest.Wait()
}

func (g *ground) expect(session store.LiveSession, why string, want ...store.Message) {
	g.t.Helper()
	ids := []string{}
	for _, m := range want {
		ids = append(ids, m.ID)
	}
	if got := g.box.of(session.Session); !slices.Equal(got, ids) {
		g.t.Errorf("%s: took %v, want %v", why, short(got), short(ids))
	}
}

func short(ids []string) []string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = id[max(0, len(id)-6):]
	}
	return out
}

func isPoison(err error) bool { return fault.IsPoison(err) }

func addr(runner string) fabric.RunnerAddr { return fabric.RunnerAddr{Fleet: "shared", ID: runner} }

func synctestWait() { synctest.Wait() }

// waker starts sessions that wait to be claimed.
type waker struct {
	ground *ground
	mu     sync.Mutex
	err    error
	asked  []string
}

func (w *waker) Wake(ctx context.Context, agent string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, agent)
	if w.err != nil {
		return w.err
	}
	t, _ := store.TenantFromContext(ctx)
	w.ground.truth.start(t, agent, "r9")
	w.ground.truth.mu.Lock()
	defer w.ground.truth.mu.Unlock()
	w.ground.truth.sessions[agent].claimed = false
	return nil
}

// signed packs a command as a proof under a key.
func signed(t *testing.T, cmd *compassv1.Command, key string) *compassv1.SessionsResponse {
	t.Helper()
	body, err := proto.Marshal(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return &compassv1.SessionsResponse{Body: body, KeyId: key}
}

// sync changes or reads the world while nothing else does.
func (g *ground) sync(fn func()) {
	g.truth.mu.Lock()
	defer g.truth.mu.Unlock()
	g.box.mu.Lock()
	defer g.box.mu.Unlock()
	fn()
}

// questions is how many times the truth was asked something.
func (g *ground) questions() int {
	g.truth.mu.Lock()
	defer g.truth.mu.Unlock()
	return len(g.truth.log)
}
