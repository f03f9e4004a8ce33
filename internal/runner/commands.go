package runner

import (
	"sort"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// commandChain is the recipient's half of a session's commands: applied in the order of their chain, each once.
type commandChain struct {
	applied int64 // newest applied
	// done holds what was consumed, by number. A number below applied is no proof of that: after a failover it may name a
	// command that never came (AckPos).
	done map[int64]*compassv1.CommandAck
	// seen keeps one steer per (message, position): the row behind it may have been forgotten and made again (SteerDedupe).
	seen  map[messageAt]bool
	queue []*compassv1.SessionCommand
	acks  []*compassv1.CommandAck
}

type messageAt struct {
	id  string
	pos int64
}

func newCommandChain() commandChain {
	return commandChain{done: map[int64]*compassv1.CommandAck{}, seen: map[messageAt]bool{}}
}

// push takes the hint of one command. It answers true where something between is missing and must be fetched.
func (c *commandChain) push(cmd *compassv1.SessionCommand) (fetch bool) {
	switch {
	case c.reack(cmd.GetN()), cmd.GetN() <= c.applied:
		return false
	case cmd.GetPrev() == c.applied:
		c.apply(cmd)
		return false
	}
	return true
}

// reack acknowledges again what was consumed. Only a consequence is acknowledged, never an acceptance (AckConsumed); and a
// pending ack is not queued twice, or duplicates feed on each other (AckOnce).
func (c *commandChain) reack(n int64) bool {
	ack := c.done[n]
	if ack == nil {
		return false
	}
	for _, a := range c.acks {
		if a.GetN() == n {
			return true
		}
	}
	c.acks = append(c.acks, ack)
	return true
}

// fetched applies what a fetch listed: in order, and what it lists is all there is.
func (c *commandChain) fetched(list []*compassv1.SessionCommand) {
	sort.Slice(list, func(i, j int) bool { return list[i].GetN() < list[j].GetN() })
	for _, cmd := range list {
		if cmd.GetN() > c.applied {
			c.apply(cmd)
		}
	}
}

func (c *commandChain) apply(cmd *compassv1.SessionCommand) {
	c.applied = cmd.GetN()
	c.queue = append(c.queue, cmd)
}

// next hands out the oldest command that is new to the agent; one whose message it had is only acknowledged.
func (c *commandChain) next() *compassv1.SessionCommand {
	for len(c.queue) > 0 {
		cmd := c.queue[0]
		c.queue = c.queue[1:]
		if m := cmd.GetMessage(); m != nil {
			at := messageAt{m.GetId(), m.GetPos()}
			if c.seen[at] {
				c.consume(cmd)
				continue
			}
			c.seen[at] = true
		}
		return cmd
	}
	return nil
}

// consume records the consequence and queues its ack.
func (c *commandChain) consume(cmd *compassv1.SessionCommand) {
	c.done[cmd.GetN()] = &compassv1.CommandAck{N: cmd.GetN(), MessageId: cmd.GetMessage().GetId(), Pos: cmd.GetMessage().GetPos()}
	c.reack(cmd.GetN())
}
