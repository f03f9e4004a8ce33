package delivery

import (
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// pollEvery is the pause between two looks at the cursors. Shorter is faster and costs more; this one is between the two.
const pollEvery = 50 * time.Millisecond

// newPolling asks for what the channel owes by the drain's own statements, over and over, for all sessions at once.
func newPolling(tb testing.TB, recipients int) *stage {
	tb.Helper()
	s := newStage(tb, recipients)
	told := s.local()
	c := s.comms(told, nil)
	s.serve(edge.Options{Comms: c, Emitter: told})
	passed, cursors := map[string]int64{}, map[string]*cursor{}
	for _, a := range s.agents {
		session := s.tenant.Session(tb, a)
		cursors[session.ID] = s.cursor(tb.Context(), session)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(pollEvery)
		defer tick.Stop()
		for {
			select {
			case <-tb.Context().Done():
				return
			case <-tick.C:
			}
			for s.look(passed, cursors) {
			}
		}
	}()
	tb.Cleanup(func() { <-ended })
	return s
}

// look hands out one page and reports whether there may be more.
func (s *stage) look(passed map[string]int64, cursors map[string]*cursor) (more bool) {
	view, err := s.world.Store.ChannelOwed(s.tenant.Ctx, store.ChannelQuery{Stream: stream, Channel: s.channel.ID, Page: 32, Passed: passed})
	if err != nil {
		return false
	}
	var sessions []string
	ids := map[string]bool{}
	for _, o := range view.Sessions {
		if len(o.Rows) > 0 {
			sessions = append(sessions, o.Session)
		}
		for _, row := range o.Rows {
			ids[row.ID] = true
		}
	}
	if len(ids) == 0 {
		return false
	}
	q := store.ContentQuery{Channel: s.channel.ID, Sessions: sessions}
	for id := range ids {
		q.Messages = append(q.Messages, id)
	}
	if _, err := s.world.Store.ChannelContent(s.tenant.Ctx, q); err != nil {
		return false
	}
	for _, o := range view.Sessions {
		for _, row := range o.Rows {
			s.times.enter(row.ID)
			passed[o.Session] = row.Pos
			cursors[o.Session].reached(row.Pos)
		}
		more = more || o.Cut
	}
	return more
}
