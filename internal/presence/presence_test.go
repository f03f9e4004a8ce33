package presence_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/presence"
	"github.com/rigelbuild/compass-operator/internal/store"
)

type twin struct {
	bindings []store.Binding
	err      error
	facts    []event.Ref
}

func (w *twin) LiveAgentSessions(context.Context) ([]store.Binding, error) { return w.bindings, w.err }
func (w *twin) Emit(_ context.Context, f event.Fact)                       { w.facts = append(w.facts, f.Ref()) }

// Holds REQ-016.
func TestAgents(t *testing.T) {
	t.Parallel()
	w := &twin{bindings: []store.Binding{
		{Session: "s1", Agent: "a_1", Live: true, Claimed: true, OpenTurn: "t", BoundAtUnixMs: 5},
		{Session: "s2", Agent: "a_2", Live: true},
		{Session: "s3", Agent: "a_3", Live: true, Claimed: true},
	}}
	p, err := presence.New(presence.Options{Sessions: w, Emitter: w, Now: func() time.Time { return time.UnixMicro(7) }})
	if err != nil {
		t.Fatal(err)
	}
	got, err := p.Agents(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []presence.Agent{{Account: "a_1", Session: "s1", SinceUnixMs: 5, Writing: true}, {Account: "a_3", Session: "s3"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	w.err = errors.New("away")
	if _, err := p.Agents(t.Context()); !errors.Is(err, w.err) {
		t.Errorf("error %v", err)
	}
	p.AgentChanged(t.Context(), "t_1", "a_1")
	if diff := cmp.Diff([]event.Ref{{Tenant: "t_1", Kind: event.NamePresenceChanged, RowID: "a_1", Version: 7}}, w.facts); diff != "" {
		t.Error(diff)
	}
}
