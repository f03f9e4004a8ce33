package comms_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// Holds REQ-106 (at the edge: a tenant that writes more than its limit is told when to come back, and nobody else is).
func TestAdmissionIsPerTenant(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme, rival := f.Tenant(t, "acme"), f.Tenant(t, "rival")
	f.Exec(t, `update compass.tenants set limits = '{"messages":{"perSecond":2,"burst":3,"maxBytes":10}}' where id = $1`, acme.ID)
	a, b := acme.Channel(t, "a"), rival.Channel(t, "b")
	post := func() error {
		_, err := f.comms.PostMessage(acme.Ctx, text(a, acme.Admin, f.IDs.Message()[20:]))
		return err
	}
	for i := range 3 {
		if err := post(); err != nil {
			t.Fatalf("post %d of a burst of 3: %v", i, err)
		}
	}
	err := post()
	if wait, ok := fault.DelayOf(err); !errors.Is(err, wire.ErrExhausted) || !ok || wait != 500*time.Millisecond {
		t.Errorf("beyond the burst: %v after %v, want ErrExhausted for 500ms", err, wait)
	}
	if _, err := f.comms.PostMessage(rival.Ctx, text(b, rival.Admin, "x")); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	f.clock.advance(500 * time.Millisecond)
	if err := post(); err != nil {
		t.Errorf("half a second later: %v", err)
	}
	if err := post(); !errors.Is(err, wire.ErrExhausted) {
		t.Errorf("and one more: %v", err)
	}
	if n := f.Count(t, `select count(*) from compass.messages where tenant_id = $1`, acme.ID); n != 4 {
		t.Errorf("%d messages were made, want 4", n)
	}
}

func TestAdmissionBoundsTheSize(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	n := text(channel, acme.Admin, "big")
	n.Blocks = []store.Block{store.Text(strings.Repeat("x", store.DefaultMessageLimits.MaxBytes))}
	if _, err := f.comms.PostMessage(acme.Ctx, n); err != nil {
		t.Errorf("as large as allowed: %v", err)
	}
	n.ClientID, n.Blocks = "bigger", append(n.Blocks, store.Mention("a"))
	if _, err := f.comms.PostMessage(acme.Ctx, n); !errors.Is(err, store.ErrTooLarge) {
		t.Errorf("one byte more: %v, want ErrTooLarge", err)
	}
	if _, err := f.comms.PostMessage(t.Context(), n); !errors.Is(err, store.ErrNoTenant) {
		t.Errorf("without a tenant: %v, want ErrNoTenant", err)
	}
}

// A change of limits is noticed, and does not refill the bucket.
func TestAdmissionFollowsTheLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	acme := f.Tenant(t, "acme")
	channel := acme.Channel(t, "a")
	limit := func(burst int) {
		f.Exec(t, `update compass.tenants set limits = jsonb_build_object('messages', jsonb_build_object('perSecond', 0.001, 'burst', $2::int))
			where id = $1`, acme.ID, burst)
	}
	post := func() error {
		_, err := f.comms.PostMessage(acme.Ctx, text(channel, acme.Admin, f.IDs.Message()))
		return err
	}
	limit(1)
	must(t, post())
	limit(5)
	if err := post(); !errors.Is(err, wire.ErrExhausted) {
		t.Errorf("before the limits are read again: %v", err)
	}
	f.clock.advance(31 * time.Second)
	if err := post(); !errors.Is(err, wire.ErrExhausted) {
		t.Errorf("a larger bucket begins as full as it was: %v", err)
	}
	f.clock.advance(1000 * time.Second)
	if err := post(); err != nil {
		t.Errorf("when one more has come together: %v", err)
	}
}

// The limits of the database are noted where the store looks for them.
func TestDatabaseLimitsAreNoted(t *testing.T) {
	t.Parallel()
	known := &store.KnownLimits{}
	f := newFixture(t, func(o *comms.Options) { o.Known = known })
	acme := f.Tenant(t, "acme")
	f.Exec(t, `update compass.tenants set limits = '{"database":{"transactions":2}}' where id = $1`, acme.ID)
	if got := known.Of(acme.ID); got != store.DefaultLimits {
		t.Errorf("before anything was read: %+v", got)
	}
	_, err := f.comms.PostMessage(acme.Ctx, text(acme.Channel(t, "a"), acme.Admin, "x"))
	must(t, err)
	if got := known.Of(acme.ID); got.Transactions != 2 || got.StatementTimeout != store.DefaultLimits.StatementTimeout {
		t.Errorf("noted %+v", got)
	}
	if got := (*store.KnownLimits)(nil).Of(acme.ID); got != store.DefaultLimits {
		t.Errorf("nobody knows %+v", got)
	}
}
