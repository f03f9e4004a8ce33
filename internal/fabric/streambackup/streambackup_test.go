package streambackup_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/jsm.go"
	"github.com/nats-io/jsm.go/api/jetstream/advisory"
	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/fabric/streambackup"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

const patience = 30 * time.Second

func start(t *testing.T) *embedded.Server {
	t.Helper()
	ns, err := embedded.Start(embedded.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), SyncEvery: "10s"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Stop)
	return ns
}

// open is the fabric as Server and worker in one.
func open(t *testing.T, ns *embedded.Server) *fabric.Fabric {
	t.Helper()
	creds, err := ns.Standalone()
	if err != nil {
		t.Fatal(err)
	}
	f, err := fabric.New(fabric.Config{
		Name: "test", InProcess: ns, Credentials: creds, Stream: fabrictest.Stream, Manage: true, MaxDeliver: 2,
		Spec: fabric.StreamSpec{AckWait: time.Hour}, Backoff: []time.Duration{time.Hour}, Logger: slog.New(slog.DiscardHandler),
		StreamOf: func(string) (string, bool) { return fabrictest.Stream, true },
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func options(t *testing.T, ns *embedded.Server, stream string) streambackup.Options {
	t.Helper()
	key, err := fabric.NewUserSeed()
	if err != nil {
		t.Fatal(err)
	}
	user, err := ns.Keys().Compass.BackupUser(key.Public(), fabrictest.Stream, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return streambackup.Options{
		Stream: stream, Credentials: fabric.StaticCredentials(user, key, fabric.BackupInbox), NATS: []nats.Option{nats.InProcessServer(ns)},
	}
}

// rows are those that a callback got; what it says of each is up to their names.
type rows struct {
	mu  sync.Mutex
	got []string
}

func (r *rows) take(_ context.Context, ref fabric.EventRef) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, ref.RowID)
	switch kind, _, _ := strings.Cut(ref.RowID, "-"); kind {
	case "poison":
		return fault.Poison("Bad", fabrictest.ErrBoom)
	case "fails":
		return fabrictest.ErrBoom
	}
	return nil
}

func (r *rows) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func publish(t *testing.T, f *fabric.Fabric, row string) {
	t.Helper()
	subject, err := fabric.CommsSubject(fabrictest.TenantA, fabric.KindMessagePosted)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Publish(t.Context(), subject, fabrictest.Ref(fabrictest.TenantA, row)); err != nil {
		t.Fatal(err)
	}
}

// consume gets rows until there are n.
func consume(t *testing.T, f *fabric.Fabric, n int) []string {
	t.Helper()
	var r rows
	end, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, r.take)
	if err != nil {
		t.Fatal(err)
	}
	fabrictest.EventuallyWithin(t, patience, strconv.Itoa(n)+" rows", func() bool { return len(r.all()) >= n })
	end()
	return r.all()
}

func mustClose(t *testing.T, f *fabric.Fabric) {
	t.Helper()
	if err := f.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

type state struct {
	queue, dead fabric.StreamSeen
	consumer    fabric.ConsumerSeen
}

func observe(t *testing.T, ns *embedded.Server) state {
	t.Helper()
	f := open(t, ns)
	defer mustClose(t, f)
	queue, dead, consumer, err := f.ObserveStream(t.Context(), fabric.StreamSpec{Name: fabrictest.Stream, AckWait: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return state{queue, dead, consumer}
}

// A queue of which a part is done, one is parked and one has failed once is saved, deleted and restored: sequences, dead letter
// and the count of attempts are as they were, nothing comes that was done, and what is published next goes on from there.
func TestRestoredStreamGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	ns := start(t)
	f := open(t, ns)
	for _, row := range []string{"done-1", "poison-2", "done-3", "fails-4"} {
		publish(t, f, row)
	}
	consume(t, f, 4)
	for i := 5; i <= 20; i++ {
		publish(t, f, "left-"+strconv.Itoa(i))
	}
	mustClose(t, f)
	before := observe(t, ns)

	dir, o := filepath.Join(t.TempDir(), "monday"), options(t, ns, fabrictest.Stream)
	saved, err := streambackup.Save(t.Context(), dir, o)
	want := []streambackup.Seen{
		{Name: "CMP_main", Messages: 17, First: 4, Last: 20, Consumers: 1}, {Name: "CMP_main_DLQ", Messages: 1, First: 1, Last: 1},
	}
	if err != nil || !slices.Equal(saved, want) {
		t.Fatalf("saved %+v, %v, want %+v", saved, err, want)
	}
	f = open(t, ns)
	if err := f.RemoveStream(t.Context(), fabrictest.Stream); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.EnsureStream(t.Context(), fabric.StreamSpec{Name: fabrictest.Stream}, false); err != nil { // as the operator does
		t.Fatal(err)
	}
	mustClose(t, f)
	restored, err := streambackup.Restore(t.Context(), dir, false, o)
	if err != nil || !slices.Equal(restored, want) {
		t.Fatalf("restored %+v, %v, want %+v", restored, err, want)
	}
	if after := observe(t, ns); after.consumer.Pending != before.consumer.Pending || after.consumer.AckPending != before.consumer.AckPending ||
		after.consumer.Redelivered != before.consumer.Redelivered || after.queue.Messages != before.queue.Messages ||
		after.dead.Messages != before.dead.Messages || len(after.queue.Drift)+len(after.dead.Drift)+len(after.consumer.Drift) > 0 {
		t.Errorf("restored as %+v, want %+v", after, before)
	}
	f = open(t, ns)
	defer mustClose(t, f)
	publish(t, f, "new-21")
	got := consume(t, f, 17)
	if len(got) != 17 || got[0] != "left-5" || got[16] != "new-21" {
		t.Errorf("delivered %v, want left-5 to left-20 and new-21", got)
	}
	letters := 0
	if err := f.List(t.Context(), fabrictest.Stream, "", func(d fabric.DeadLetter) bool {
		letters++
		if d.Ref.RowID != "poison-2" || d.Reason != "Bad" || d.Attempts != 1 {
			t.Errorf("dead letter %+v", d)
		}
		return true
	}); err != nil || letters != 1 {
		t.Errorf("%d dead letters, %v, want 1", letters, err)
	}
}

// What holds messages is not lost by a restore that was not told to, nor by one whose backup is not whole.
func TestRestoreLosesNothingUnasked(t *testing.T) {
	t.Parallel()
	ns := start(t)
	f := open(t, ns)
	defer mustClose(t, f)
	if _, _, err := f.EnsureStream(t.Context(), fabric.StreamSpec{Name: fabrictest.Stream}, false); err != nil {
		t.Fatal(err)
	}
	publish(t, f, "saved-1")
	dir, o := t.TempDir(), options(t, ns, fabrictest.Stream)
	if _, err := streambackup.Save(t.Context(), dir, o); err != nil {
		t.Fatal(err)
	}
	if _, err := streambackup.Save(t.Context(), dir, o); err == nil {
		t.Error("a backup was written over another")
	}
	publish(t, f, "later-2")
	if _, err := streambackup.Restore(t.Context(), dir, false, o); !errors.Is(err, streambackup.ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
	half := t.TempDir()
	if err := os.CopyFS(half, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(half, "CMP_main_DLQ", jsm.SnapshotMetaFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := streambackup.Restore(t.Context(), half, true, o); err == nil {
		t.Error("half a backup was restored")
	}
	if n := observe(t, ns).queue.Messages; n != 2 {
		t.Errorf("%d messages after refusals, want 2", n)
	}
	if _, err := streambackup.Restore(t.Context(), dir, true, o); err != nil {
		t.Fatal(err)
	}
	if n := observe(t, ns).queue.Messages; n != 1 {
		t.Errorf("%d messages, want the 1 that was saved", n)
	}
}

// The user that saves one stream can save no other, and reads nothing.
func TestBackupUserIsOfOneStream(t *testing.T) {
	t.Parallel()
	ns := start(t)
	o := options(t, ns, "other") // with credentials of main
	if _, err := streambackup.Save(t.Context(), t.TempDir(), o); err == nil {
		t.Error("saved a stream of somebody else's")
	}
	nc, err := nats.Connect("", nats.InProcessServer(ns), nats.UserJWT(o.Credentials.JWT, o.Credentials.Sign), nats.CustomInboxPrefix(fabric.BackupInbox))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, subject := range []string{
		"$JS.API.STREAM.MSG.GET.CMP_main", "$JS.API.STREAM.PURGE.CMP_main", "$JS.API.STREAM.UPDATE.CMP_main", "$JS.API.STREAM.NAMES",
		"$JS.API.STREAM.SNAPSHOT.CMP_other", "$JS.API.STREAM.DELETE.CMP_other", "compass.q.main.t.message_posted", "compass.dlq.main.x",
	} {
		refused(t, nc, subject, func() error { return nc.Publish(subject, nil) })
	}
	for _, subject := range []string{"compass.q.>", "_INBOX.>", fabric.AdminInbox + ".>"} {
		refused(t, nc, subject, func() error { _, err := nc.SubscribeSync(subject); return err })
	}
}

// refused waits for the server's word that do was not allowed.
func refused(t *testing.T, nc *nats.Conn, subject string, do func() error) {
	t.Helper()
	said := make(chan error, 16)
	nc.SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { said <- err })
	if err := errors.Join(do(), nc.Flush()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-said:
		if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), subject) {
			t.Errorf("%s: %v, want a refusal", subject, err)
		}
	case <-time.After(patience):
		t.Errorf("%s was not refused", subject)
	}
}

// The fabric reads an advisory from its subject; what jsm.go reads in the body says the same.
func TestAdvisoriesMeanWhatTheirBodySays(t *testing.T) {
	t.Parallel()
	ns := start(t)
	f, other := open(t, ns), open(t, ns) // what the first did itself is no news to it
	defer mustClose(t, f)
	defer mustClose(t, other)
	creds, err := ns.Standalone()
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("", nats.InProcessServer(ns), nats.UserJWT(creds.JWT, creds.Sign))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var mu sync.Mutex
	var ours, theirs []fabric.Advisory
	if _, err := f.Advisories(t.Context(), func(a fabric.Advisory) {
		mu.Lock()
		defer mu.Unlock()
		ours = append(ours, a)
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Subscribe("$JS.EVENT.ADVISORY.>", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		theirs = append(theirs, typed(t, m.Data)...)
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	spec := fabric.StreamSpec{Name: fabrictest.Stream}
	if _, _, err := other.EnsureConsumer(t.Context(), spec, false); err != nil {
		t.Fatal(err)
	}
	spec.MaxBytes = 2 << 30
	if _, _, err := other.EnsureStream(t.Context(), spec, false); err != nil {
		t.Fatal(err)
	}
	if err := other.RemoveStream(t.Context(), fabrictest.Stream); err != nil {
		t.Fatal(err)
	}
	heard := func() (a, b []fabric.Advisory) {
		mu.Lock()
		defer mu.Unlock()
		byText := func(a, b fabric.Advisory) int { return strings.Compare(a.What+a.Change, b.What+b.Change) }
		return slices.SortedFunc(slices.Values(ours), byText), slices.SortedFunc(slices.Values(theirs), byText)
	}
	t.Cleanup(func() {
		a, b := heard()
		t.Logf("by subject %v, by body %v", a, b)
	})
	fabrictest.EventuallyWithin(t, patience, "both heard the same", func() bool {
		a, b := heard()
		return len(a) >= 5 && slices.Equal(a, b) // a consumer made and deleted, a stream changed, and two deleted
	})
}

// typed is what jsm.go reads, as the fabric names it.
func typed(t *testing.T, body []byte) []fabric.Advisory {
	t.Helper()
	_, event, err := jsm.ParseEvent(body)
	if err != nil {
		t.Errorf("advisory: %v", err)
		return nil
	}
	var name, action, what string
	switch e := event.(type) {
	case *advisory.JSStreamActionAdvisoryV1:
		name, action, what = e.Stream, e.Action.String(), "STREAM"
	case *advisory.JSConsumerActionAdvisoryV1:
		name, action, what = e.Stream, e.Action.String(), "CONSUMER"
	default:
		return nil
	}
	change := map[string]string{"create": "CREATED", "modify": "UPDATED", "delete": "DELETED"}[action]
	return []fabric.Advisory{{Stream: strings.TrimSuffix(strings.TrimPrefix(name, "CMP_"), "_DLQ"), Change: change, What: what}}
}
