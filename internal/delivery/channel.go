package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// drainChannel brings the chains of one channel forward. It first applies what Runners said since the last time, and reads
// Postgres only where something can be sent: an answer that merely reports progress costs no round trip.
func (c *Consumer) drainChannel(ctx context.Context, t *tenant, w work) (err error) {
	gate, heard := c.gates.open(w.item)
	defer func() {
		if err == nil { // else the whole look comes again
			c.later.at(w.item, whyTimer, gate.wake(c.clock.Now(), c.o))
		}
		flight, chains := c.gates.close(w.item, gate)
		c.in.inFlight.Add(int64(flight))
		c.in.chains.Add(int64(chains))
	}()
	rejected := c.applyAnswers(ctx, gate, heard)
	if err := c.countRejections(ctx, t, w.id, rejected); err != nil {
		return err
	}
	now := c.clock.Now()
	read := w.why&(whyRead|whySweep) != 0
	for _, ch := range gate.chains {
		ch.again(now)
		if w.why&whySweep != 0 { // the floor trusts no memory of what was passed
			ch.looked = 0
			ch.probe(now, c.o.FloorTick)
		}
		// A cursor moved: that lets more go only where a full window waits for it.
		read = read || ch.ready(now, c.o.Window, c.o.AckWait) || w.why&whyNews != 0 && ch.more && !now.Before(ch.hold)
	}
	if !read {
		return nil
	}
	return c.fanOut(ctx, t, w, gate)
}

// applyAnswers moves the chains to where their Runners are, between drains.
func (c *Consumer) applyAnswers(ctx context.Context, g *gate, heard []answer) (rejected []chainRejection) {
	for _, a := range heard {
		ch := g.chains[a.session]
		if ch == nil || ch.live.Generation != a.generation || ch.live.Runner != a.runner {
			continue // of another life, or said by somebody else's Runner
		}
		was := ch.rewound
		for _, d := range ch.apply(a) {
			c.in.hops.Took(ctx, telemetry.HopTaken, d)
		}
		if ch.rewound != was && !a.dropped {
			c.in.rewinds.Add(ctx, 1)
		}
		for _, r := range a.rejected {
			rejected = append(rejected, chainRejection{ch, r})
		}
	}
	return rejected
}

// fanOut sends what a channel owes to every session that is entitled to it: one statement lists, one more reads content and
// membership for all that goes now, and nothing that was read before is believed.
func (c *Consumer) fanOut(ctx context.Context, t *tenant, w work, g *gate) error {
	begun := c.clock.Now()
	view, err := c.readChannel(ctx, w.item, g)
	if err != nil {
		return err
	}
	read := c.clock.Now()
	c.in.hops.Took(ctx, telemetry.HopDrain, read.Sub(w.since))
	if !view.Mine || view.Draining {
		c.endGates(w.item, g, nil)
		return c.notToSend(t, view.Mine, view.Draining)
	}
	if len(view.Sessions) > 0 {
		if again, err := c.raise(ctx, t, view.Claim); again || err != nil {
			c.dirty.add(w.item, w.why|whyRead) // under the new epoch everything is read again
			return err
		}
	}
	c.wakeAll(ctx, t, view.Asleep)
	d := &drain{Consumer: c, tenant: t, item: w.item, gate: g, claim: view.Claim, head: view.Head, now: begun, read: read,
		sweeps: w.why&whySweep != 0}
	live := map[string]bool{}
	for _, s := range view.Sessions {
		live[s.Session] = true
		if until := t.asideUntil(s.Runner, begun); !until.IsZero() {
			c.later.at(w.item, whyRead, until)
			delete(live, s.Session)
			continue
		}
		d.meet(s)
	}
	c.endGates(w.item, g, live)
	if c.mustBeCareful(t, w.item) {
		err = d.carefully(ctx)
	} else {
		err = d.sendAll(ctx)
	}
	if err == nil && d.settled() {
		c.swept(t, w.item)
	}
	return err
}

func (c *Consumer) readChannel(ctx context.Context, it item, g *gate) (view store.ChannelView, err error) {
	q := store.ChannelQuery{Stream: c.o.Stream, Channel: it.id, Page: 2 * c.o.Window, Passed: make(map[string]int64, len(g.chains))}
	for session, ch := range g.chains {
		q.Passed[session] = ch.passed()
	}
	err = c.step(ctx, func(ctx context.Context) error {
		view, err = c.reads.ChannelOwed(ctx, q)
		return err
	})
	return view, err
}

// endGates drops the chains of sessions that are not live, or owe nothing. A later one begins at the cursor.
func (c *Consumer) endGates(it item, g *gate, live map[string]bool) {
	for session := range g.chains {
		if !live[session] {
			c.gates.end(it, g, session)
		}
	}
}

// notToSend is what a drain does that found the tenant not to be served here (any more).
func (c *Consumer) notToSend(t *tenant, mine, draining bool) error {
	if !mine {
		c.lost(t)
	} else if draining {
		c.dirty.add(item{tenant: t.id, kind: itemTenant}, whyRead)
	}
	return nil
}

// drain is one look at one channel.
type drain struct {
	*Consumer
	tenant *tenant
	item   item
	gate   *gate
	claim  int64
	head   int64
	now    time.Time
	read   time.Time // when the snapshot was there
	plans  []*plan
	left   bool // a session was not looked at
	sweeps bool // the floor looks

	suspect bool // the row that is being sent has an attempt on record
}

// plan is what one session gets in one look: links that are sent again, then new ones, in order.
type plan struct {
	ch   *chain
	rows []store.OwedRow
	cut  bool
	done bool // what follows waits: for room, for a pause to be over, for a Runner
}

// meet brings a session's chain up to what was read, and plans what it gets. A session has one generation and one Runner, so
// its chain needs no look at them. A chain of another claim ends, and so does one whose Runner was told of an ack that a failover forgot since: what it gets twice makes it acknowledge again
// (DupReack). The floor alone looks for that, because until the ack is there again each answer would begin another chain.
func (d *drain) meet(s store.OwedSession) {
	ch := d.gate.chains[s.Session]
	replaced := ch != nil && (ch.claim != d.claim || d.sweeps && s.Acked < ch.acked)
	if ch == nil || replaced {
		ch = newChain(s.LiveSession, d.claim, s.Acked)
		d.gates.begin(d.item, d.gate, ch)
	}
	ch.live = s.LiveSession
	ch.ack(s.Acked)
	ch.more = s.Cut
	switch {
	case replaced: // what was listed begins after what the old one had passed
		ch.more, d.left = true, true
		d.dirty.add(d.item, whyRead)
	case d.now.Before(ch.hold):
		ch.more, d.left = true, true
	default:
		d.plans = append(d.plans, &plan{ch: ch, rows: s.Rows, cut: s.Cut})
	}
}

// pace is one row of a plan: to be sent, or to be passed because it is not for this chain. What was passed is remembered
// only when everything before it was sent.
type pace struct {
	row  store.OwedRow
	pass bool
}

// next is the next pace of a plan; false where the plan has come to its end or must wait. planned is how many rows before
// it go out in the same look. A row whose attempts are used up is set aside, and that is committed before anything after it
// is sent.
func (d *drain) next(ctx context.Context, p *plan, planned int) (now pace, ok bool, err error) {
	if p.done || len(p.rows) == 0 {
		return pace{}, false, nil
	}
	row := p.rows[0]
	switch {
	case row.Skip:
		now.pass = true
	case row.Attempts >= d.o.MaxDeliver:
		if err := d.park(ctx, p, row); err != nil {
			p.pause(d.now)
			return pace{}, false, err
		}
		now.pass = true
	case p.ch.room(d.o.Window) <= planned, row.Attempts > 0 && d.mustWait(p.ch, row):
		p.stop()
		return pace{}, false, nil
	}
	p.rows = p.rows[1:]
	now.row = row
	return now, true, nil
}

// take takes one pace.
func (d *drain) take(ctx context.Context, p *plan, now pace, read reader) (reached bool, err error) {
	if now.pass {
		p.ch.looked = max(p.ch.looked, now.row.Pos)
		return true, nil
	}
	return d.sendRow(ctx, p, now.row, read)
}

// end is called when every pace was taken: there is nothing up to the head that the chain has not seen.
func (p *plan) end(head int64) {
	if !p.done && !p.cut {
		p.ch.looked = max(p.ch.looked, head)
	}
}

// stop leaves the rest for later.
func (p *plan) stop() { p.done, p.ch.more = true, true }

// pause is stop after a failure: the chain rests a little before it is tried again.
func (p *plan) pause(now time.Time) {
	p.stop()
	p.ch.unreachable(now)
}

// mustWait reports whether the pause after the row's last attempt is not over, and holds the chain until then: what comes
// after it waits too, because order is the chain's.
func (d *drain) mustWait(ch *chain, row store.OwedRow) bool {
	left := d.pauseAfter(d.tenant, row.Attempts, row.IdleMs)
	if left <= 0 {
		return false
	}
	ch.hold = d.now.Add(left)
	return true
}

func (d *drain) delivery(p *plan, row store.OwedRow) store.Delivery {
	return store.Delivery{MessageID: row.ID, Recipient: p.ch.live.Agent, Channel: d.item.id, Pos: row.Pos}
}

// sendAll plans for every session, reads what goes in one statement, and sends it.
func (d *drain) sendAll(ctx context.Context) error {
	going, q, err := d.planAll(ctx)
	content, readErr := d.readContent(ctx, q)
	errs := []error{err, readErr}
	read := func(context.Context, store.Delivery, string) (store.Content, error) { return content, nil }
	for i, p := range d.plans {
		if readErr != nil {
			p.pause(d.now)
			continue
		}
		reached, err := d.sendAgain(ctx, p, read)
		for n := 0; reached && n < len(going[i]); n++ {
			reached, err = d.take(ctx, p, going[i][n], read)
		}
		if !reached {
			p.pause(d.now)
		}
		p.end(d.head)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// planAll decides for each session which rows go in this look, and what must be read for them. Several sessions that are
// owed the same message share one reading of it.
func (d *drain) planAll(ctx context.Context) (going [][]pace, q store.ContentQuery, err error) {
	q.Channel = d.item.id
	wanted := map[string]bool{}
	want := func(id string) {
		if !wanted[id] {
			wanted[id] = true
			q.Messages = append(q.Messages, id)
		}
	}
	going = make([][]pace, len(d.plans))
	for i, p := range d.plans {
		q.Sessions = append(q.Sessions, p.ch.live.Session)
		paces, failed := d.planOne(ctx, p)
		err = errors.Join(err, failed)
		going[i] = paces
		for _, now := range paces {
			if !now.pass {
				want(now.row.ID)
			}
		}
		for _, l := range p.ch.flight {
			if l.overdue(d.now, d.o.AckWait) {
				want(l.id)
			}
		}
	}
	return going, q, err
}

func (d *drain) planOne(ctx context.Context, p *plan) (paces []pace, err error) {
	planned := 0
	for {
		now, ok, err := d.next(ctx, p, planned)
		if !ok {
			return paces, err
		}
		paces = append(paces, now)
		if !now.pass {
			planned++
		}
	}
}

// reader reads what a session is sent. It is asked again for each link: after an unclean exit it writes the row's attempt
// down first.
type reader func(ctx context.Context, what store.Delivery, session string) (store.Content, error)

func (d *drain) readContent(ctx context.Context, q store.ContentQuery) (content store.Content, err error) {
	if len(q.Messages) == 0 {
		return store.Content{}, nil
	}
	err = d.step(ctx, func(ctx context.Context) error {
		content, err = d.reads.ChannelContent(ctx, q)
		return err
	})
	return content, err
}

// sendAgain sends the links that were not taken in time: with the prev, pos and id of then, and the fence of now
// (GateClaim). No attempt is counted (SilenceFree).
func (d *drain) sendAgain(ctx context.Context, p *plan, read reader) (reached bool, err error) {
	flight := p.ch.flight
	p.ch.flight = make([]link, 0, len(flight))
	for i, l := range flight {
		if l.overdue(d.now, d.o.AckWait) {
			m, fit, err := d.fit(ctx, p, store.OwedRow{ID: l.id, Pos: l.pos}, read)
			if err == nil && !fit {
				continue
			}
			if err == nil {
				reached, err = d.deliver(ctx, p.ch, l, m)
			}
			if err != nil || !reached {
				p.ch.flight = append(p.ch.flight, flight[i:]...)
				return false, err
			}
			count(ctx, d.in.sent, 1, "kind", "resend")
			l.sent = d.clock.Now()
		}
		p.ch.flight = append(p.ch.flight, l)
	}
	return true, nil
}

// sendRow sends one new link; a message that the session is no longer entitled to, or that is not there any more, is passed.
func (d *drain) sendRow(ctx context.Context, p *plan, row store.OwedRow, read reader) (reached bool, err error) {
	d.suspect = row.Attempts > 0
	m, fit, err := d.fit(ctx, p, row, read)
	d.suspect = false
	if err != nil {
		return false, err
	}
	if !fit {
		p.ch.looked = max(p.ch.looked, row.Pos)
		return true, nil
	}
	reached, err = d.deliver(ctx, p.ch, link{prev: p.ch.prev(), pos: row.Pos, id: row.ID}, m)
	if reached {
		count(ctx, d.in.sent, 1, "kind", "deliver")
		p.ch.sentTo(row.ID, row.Pos, d.clock.Now())
	}
	return reached, err
}

// fit reads a message for a session; false where it is not to have it (any more).
func (d *drain) fit(ctx context.Context, p *plan, row store.OwedRow, read reader) (m store.Message, fit bool, err error) {
	content, err := read(ctx, d.delivery(p, row), p.ch.live.Session)
	if err != nil {
		return m, false, err
	}
	m, entitled, gone := content.For(p.ch.live.Session, row.ID, row.Pos)
	if gone { // a failover forgot it between two statements (J6)
		count(ctx, d.in.missing, 1, "of", "listed")
		d.dirty.add(d.item, whyRead)
	}
	return m, entitled, nil
}

// settled reports whether the look came to its end: nothing was left because its pause was not over or nobody was reached.
func (d *drain) settled() bool {
	for _, p := range d.plans {
		// A page that was passed whole, because nothing on it is for this chain, is not the end of what may be read now.
		if d.now.Before(p.ch.hold) || p.cut && !p.done {
			return false
		}
	}
	return !d.left
}
