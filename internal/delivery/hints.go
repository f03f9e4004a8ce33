package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// errLease refuses a reference once the lease's deadline has passed: whoever holds the lease next gets it.
var errLease = errors.New("the lease of database 0 is not held")

// onEventRef is one bounded step (REQ-041, REQ-047): check the reference, mark its row dirty, ack. It reads no row, so it
// cannot die on one and cannot be slow; a tenant that was not seen lately costs one read of its placement.
//
// Acking means "marked": what is remembered is only timing, because a start sweeps everything that is owed. So the answer
// is nil or Poison, whatever is away (T6); the one exception is a worker that is no longer the stream's, whose acks would
// only drop hints, and which is about to exit.
func (c *Consumer) onEventRef(ctx context.Context, ref fabric.EventRef) error {
	if _, ok := c.leases.Fence(0); !ok {
		count(ctx, c.in.hints, 1, "result", "no_lease")
		return fault.RetryAfter(time.Second, errLease)
	}
	if err := checkRef(ref); err != nil {
		count(ctx, c.in.hints, 1, "result", "malformed")
		return fault.Poison("Malformed", err)
	}
	tenant := store.TenantID(ref.Tenant)
	switch c.whose(ctx, tenant) {
	case unknown:
		count(ctx, c.in.hints, 1, "result", "unknown_tenant")
		return fault.Poison("UnknownTenant", fmt.Errorf("no tenant %s", ref.Tenant))
	case foreign:
		count(ctx, c.in.hints, 1, "result", "foreign") // its own stream's worker swept it when it was claimed
		return nil
	case ours:
	}
	count(ctx, c.in.hints, 1, "result", "taken")
	c.markRow(tenant, ref.RowID)
	return nil
}

func checkRef(ref fabric.EventRef) error {
	if ref.Kind != fabric.KindMessagePosted {
		return fmt.Errorf("kind %q is not of the queue lane", ref.Kind)
	}
	return errors.Join(naming.ValidTenant(ref.Tenant), naming.ValidID(naming.MessagePrefix, ref.RowID))
}

// markRow remembers a row of which a reference came. Where too many wait, a sweep finds what they led to once the tenant
// can be looked at again, so that a flood of references bounds itself.
func (c *Consumer) markRow(tenant store.TenantID, id string) {
	if _, ok := c.leases.Fence(c.tenants.get(tenant).inDatabase()); !ok {
		return // when the lease is back, that database is swept
	}
	c.rows.add(tenant, id)
	c.dirty.add(item{tenant: tenant, kind: itemRows}, whyRead)
}

// rows are the rows that references named and that are not resolved yet.
type rows struct {
	mu      sync.Mutex
	waiting map[store.TenantID]map[string]bool
	dropped map[store.TenantID]bool // more came than were kept
}

func (r *rows) add(tenant store.TenantID, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting == nil {
		r.waiting, r.dropped = map[store.TenantID]map[string]bool{}, map[store.TenantID]bool{}
	}
	ids := r.waiting[tenant]
	if ids == nil {
		ids = map[string]bool{}
		r.waiting[tenant] = ids
	}
	if len(ids) >= rowsMax && !ids[id] {
		r.dropped[tenant] = true
		return
	}
	ids[id] = true
}

// lost reports, once, whether rows of the tenant were dropped.
func (r *rows) lost(tenant store.TenantID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	lost := r.dropped[tenant]
	delete(r.dropped, tenant)
	return lost
}

// take hands out a page of a tenant's rows, and says whether more wait.
func (r *rows) take(tenant store.TenantID) (ids []string, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.waiting[tenant] {
		if len(ids) == rowPage {
			return ids, true
		}
		ids = append(ids, id)
		delete(r.waiting[tenant], id)
	}
	delete(r.waiting, tenant)
	return ids, false
}

// Hint is what a Server tells the worker of a stream, beside references: that an agent's session was claimed (Agent), that a
// cursor moved or members changed in a channel (Channel: it lets more go, and makes nothing owed that was not), or that the
// tenant's placement changed (neither). It is lossy; the tick heals what it misses.
type Hint struct {
	Tenant  string `json:"tenant"`
	Agent   string `json:"agent,omitempty"`
	Channel string `json:"channel,omitempty"`
}

// HintEvent is the event of a note that carries a Hint.
const HintEvent = "hint"

// Note packs a hint for fabric.Notifier.NotifyWorker.
func (h Hint) Note() fabric.Note {
	envelope, _ := json.Marshal(h) // three strings
	return fabric.Note{Event: HintEvent, Envelope: envelope}
}

// onNote takes what a Server tells this worker.
func (c *Consumer) onNote(ctx context.Context, note fabric.Note) {
	var h Hint
	if note.Event != HintEvent || json.Unmarshal(note.Envelope, &h) != nil || naming.ValidTenant(h.Tenant) != nil {
		count(ctx, c.in.hints, 1, "result", "bad_note")
		return
	}
	tenant := store.TenantID(h.Tenant)
	if h.Agent == "" && h.Channel == "" {
		poke(c.movesNow)
		return
	}
	if c.whose(ctx, tenant) != ours {
		return
	}
	count(ctx, c.in.hints, 1, "result", "note")
	if h.Agent != "" {
		c.dirty.add(item{tenant: tenant, kind: itemSession, id: h.Agent}, whyRead)
	}
	if h.Channel != "" && c.gates.has(item{tenant: tenant, kind: itemChannel, id: h.Channel}) {
		c.dirty.add(item{tenant: tenant, kind: itemChannel, id: h.Channel}, whyNews)
	}
}

// onState takes what a Runner says it holds. It moves only memory, and not here: each answer waits until the drain of its
// channel is through (AnswersQueued). From is what the broker vouches for.
func (c *Consumer) onState(ctx context.Context, from fabric.RunnerAddr, s *compassv1.RunnerState) {
	t := c.tenants.find(store.TenantID(s.GetTenantId()))
	if t == nil {
		return // nothing was ever sent for it
	}
	if s.GetRefused() {
		c.onRefused(ctx, t, from, s)
		return
	}
	base := answer{session: s.GetSessionId(), generation: s.GetGeneration(), runner: from.ID, at: c.clock.Now()}
	if s.GetGone() {
		c.dropped(t.id, base)
		return
	}
	rejected := map[string][]rejection{}
	for _, r := range s.GetRejected() {
		rejected[r.GetChannelId()] = append(rejected[r.GetChannelId()],
			rejection{id: r.GetMessageId(), pos: r.GetPos(), count: int(r.GetCount()), reason: r.GetReason()})
	}
	for _, ch := range s.GetChannels() {
		a := base
		a.held, a.acked, a.refused, a.rejected = ch.GetHeld(), ch.GetAcked(), ch.GetRefused(), rejected[ch.GetChannelId()]
		it := item{tenant: t.id, kind: itemChannel, id: ch.GetChannelId()}
		if c.gates.heard(it, a) {
			c.dirty.add(it, whyTimer)
		}
	}
}

// dropped tells every chain of a session that its commands went nowhere.
func (c *Consumer) dropped(tenant store.TenantID, a answer) {
	a.dropped = true
	for _, it := range c.gates.of(a.session) {
		if it.tenant == tenant && c.gates.heard(it, a) {
			c.dirty.add(it, whyTimer)
		}
	}
}

// onRefused takes a refusal for the fence. Only a command that one of our keys signed proves that there is a higher one;
// then the next drain raises the epoch first. An unproved word is counted, and nothing is sent to that Runner for a while:
// it cannot make workers outbid each other.
func (c *Consumer) onRefused(ctx context.Context, t *tenant, from fabric.RunnerAddr, s *compassv1.RunnerState) {
	a := answer{session: s.GetSessionId(), generation: s.GetGeneration(), runner: from.ID, at: c.clock.Now()}
	claimed := seen{claim: s.GetSeen().GetClaim(), lease: s.GetSeen().GetLease()}
	proof, err := c.o.OpenProof(s.GetSeenProof())
	valid := err == nil && proof.GetTenantId() == string(t.id) && proof.GetRunnerId() == from.ID &&
		claimed == seen{claim: proof.GetFence().GetClaim(), lease: proof.GetFence().GetLease()}
	if !valid {
		count(ctx, c.in.refused, 1, "proof", "invalid")
		c.log.WarnContext(ctx, "A Runner refused a command without a proof", "tenant", t.id, "runner", from.ID, "error", err)
		t.setAside(from.ID, a.at.Add(c.o.FloorTick))
		c.dropped(t.id, a)
		return
	}
	count(ctx, c.in.refused, 1, "proof", "valid")
	if t.saw(claimed) {
		c.log.InfoContext(ctx, "A Runner has seen a higher fence", "tenant", t.id, "claim", claimed.claim, "lease", claimed.lease)
	}
	c.dropped(t.id, a)
	c.steers.forget(t.id, a.session)
}

// onReconnect asks for everything: references may have been lost while the connection was gone.
func (c *Consumer) onReconnect() { poke(c.sweepNow) }

// poke asks for something that is done once however often it is asked for before it begins.
func poke(ask chan struct{}) {
	select {
	case ask <- struct{}{}:
	default:
	}
}
