package runner

import compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"

// chain is the recipient's half of one (session generation, channel): it takes each position once, in order, and only from
// a sender that knows what is held. A new one holds nothing, so it takes only a base (FreshZero).
type chain struct {
	held     int64   // last taken
	waiting  []int64 // taken and not consumed, in order
	consumed int64   // last that the agent is done with, and all before it
	acked    int64   // last whose ack a Server answered
	unsaid   int     // how many were consumed since the last ack was sent
	refused  bool    // a link did not fit since the last state: the gate must go back, not on
	reack    bool    // a duplicate of something consumed came: its ack may have been forgotten (DupReack)
	rejected map[string]*compassv1.Rejected
}

// take decides about one link. True: it is new and now held. False: it is not, and the state says what is.
func (c *chain) take(d *compassv1.Deliver) bool {
	if d.GetPos() <= c.held {
		c.reack = c.reack || d.GetPos() <= c.consumed
		return false
	}
	if d.GetPrev() != c.held && d.GetPrev() != 0 {
		c.refused = true
		return false
	}
	c.held = d.GetPos()
	c.waiting = append(c.waiting, c.held)
	return true
}

// consume records that the agent is done with pos and everything before it.
func (c *chain) consume(pos int64) {
	c.consumed = max(c.consumed, pos)
	for len(c.waiting) > 0 && c.waiting[0] <= pos {
		c.waiting = c.waiting[1:]
		c.unsaid++
	}
	for id, r := range c.rejected {
		if r.GetPos() <= pos {
			delete(c.rejected, id)
		}
	}
}

// reject un-takes a message and what was taken after it: held goes back to what was taken before, so that the gate sends
// them again, or goes on without the one.
func (c *chain) reject(m *compassv1.Message, reason string) {
	if c.rejected == nil {
		c.rejected = map[string]*compassv1.Rejected{}
	}
	r := c.rejected[m.GetId()]
	if r == nil {
		r = &compassv1.Rejected{ChannelId: m.GetChannelId(), MessageId: m.GetId(), Pos: m.GetPos()}
		c.rejected[m.GetId()] = r
	}
	r.Count++
	r.Reason = reason
	c.refused = true
	c.held = c.consumed
	for i, pos := range c.waiting {
		if pos >= m.GetPos() {
			c.waiting = c.waiting[:i]
			break
		}
		c.held = pos
	}
}

// state is what the gate hears, and forgets that a link was refused: a second telling would look like another gap.
func (c *chain) state(channel string) *compassv1.ChannelState {
	refused := c.refused
	c.refused = false
	return &compassv1.ChannelState{ChannelId: channel, Held: c.held, Acked: c.acked, Refused: refused}
}

// owesAck says whether a Server has yet to hear, or to hear again, how far the agent is.
func (c *chain) owesAck() bool {
	return c.consumed > c.acked || (c.reack && c.consumed > 0)
}
