package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
)

// errCrashed is what the crashing agent fails with.
var errCrashed = errors.New("agent crashed on purpose")

// AgentOptions are what reference agents need. Log is required.
type AgentOptions struct {
	Log *slog.Logger
	// Clock defaults to the wall clock.
	Clock Clock
	// Record is the file of the agent record.
	Record string
}

// Agents returns the reference agents by name: echo answers what mentions it or is said by a person, slow does so after a
// pause, crash fails on every third item before it is done with it, reject refuses whatever contains the word poison,
// record writes what it takes to a file and says nothing.
func Agents(o AgentOptions) map[string]Agent {
	clock := o.Clock
	if clock == nil {
		clock = wallClock{}
	}
	echo := echoAgent{log: o.Log}
	return map[string]Agent{
		"record": recorder(o.Record).run,
		"echo":   echo.run,
		"slow": func(ctx context.Context, s *Session) error {
			return each(ctx, s, func(item Item) error {
				select {
				case <-clock.After(2 * time.Second):
				case <-ctx.Done():
					return ctx.Err()
				}
				return echo.take(ctx, s, item)
			})
		},
		"crash": func(ctx context.Context, s *Session) error {
			seen := 0
			return each(ctx, s, func(item Item) error {
				if seen++; seen%3 == 0 {
					return errCrashed
				}
				return echo.take(ctx, s, item)
			})
		},
		"reject": func(ctx context.Context, s *Session) error {
			return each(ctx, s, func(item Item) error {
				if strings.Contains(plain(item.Message), "poison") {
					s.Reject(item, "the agent refuses poison")
					return nil
				}
				return echo.take(ctx, s, item)
			})
		},
	}
}

// each hands items to take until the session is over or take fails.
func each(ctx context.Context, s *Session, take func(Item) error) error {
	for {
		item, err := s.Next(ctx)
		if err != nil {
			return err
		}
		if err := take(item); err != nil {
			return err
		}
	}
}

type echoAgent struct{ log *slog.Logger }

func (e echoAgent) run(ctx context.Context, s *Session) error {
	return each(ctx, s, func(item Item) error { return e.take(ctx, s, item) })
}

// take logs the item, which is its consequence, says done, and answers. Echoes of echoes are left alone, or two echo agents
// in one channel would never end.
func (e echoAgent) take(ctx context.Context, s *Session, item Item) error {
	m := item.Message
	text := item.Text
	if m != nil {
		text = plain(m)
	}
	e.log.InfoContext(ctx, "Agent took an item", "session", s.ID, "agent", s.AgentHandle, "message", m.GetId(),
		"channel", m.GetChannelId(), "pos", m.GetPos(), "steer", item.Steer)
	s.Done(item)
	if m == nil || strings.HasPrefix(text, "echo: ") {
		return nil
	}
	err := s.Turn(ctx, func(ctx context.Context, t *Turn) error {
		if m.GetKind() == compassv1.MessageKind_MESSAGE_KIND_ASK {
			_, err := t.Respond(ctx, m.GetId(), Text("echo: "+text))
			return err
		}
		written, err := t.Post(ctx, m.GetChannelId(), Text("echo: "))
		if err != nil {
			return err
		}
		_, err = t.Append(ctx, written.GetId(), Text(text))
		return err
	})
	if err != nil && answered(err) { // not a member any more, archived, answered by somebody else: nothing to say
		e.log.InfoContext(ctx, "Answer was refused", "session", s.ID, "error", err)
		return nil
	}
	return err
}

// plain is a message's text, with mentions as people write them.
func plain(m *compassv1.Message) string {
	var b strings.Builder
	for _, block := range m.GetBlocks() {
		if block.GetMention() != "" {
			fmt.Fprintf(&b, "@%s", block.GetMention())
			continue
		}
		b.WriteString(block.GetText())
	}
	return b.String()
}
