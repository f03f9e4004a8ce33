package edge_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/edge"
)

// switchboard is what a broker is between Servers: it puts a word through to who listens at that address.
type switchboard struct {
	down error
	mu   sync.Mutex
	ears map[string]func(edge.Word)
}

func (s *switchboard) Tell(_ context.Context, connection string, w edge.Word) error {
	s.mu.Lock()
	hear := s.ears[connection]
	s.mu.Unlock()
	if hear != nil {
		hear(w)
	}
	return s.down
}

func (s *switchboard) Hear(_ context.Context, connection string, fn func(edge.Word)) (func(), error) {
	if s.down != nil {
		return nil, s.down
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ears[connection] = fn
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.ears, connection)
	}, nil
}

func (s *switchboard) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ears)
}

// subscribe opens a stream, which may replace another one, and returns it with its address.
func (f *fixture) subscribe(t *testing.T, token, replaces string) (*connect.ServerStreamForClient[compassv1.SubscribeCommsResponse], string) {
	t.Helper()
	ask := request(&compassv1.SubscribeCommsRequest{})
	if replaces != "" {
		ask.Header().Set(edge.HeaderReplaces, replaces)
	}
	stream, err := f.messages(token).SubscribeComms(t.Context(), ask)
	must(t, err)
	t.Cleanup(func() { _ = stream.Close() })
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	return stream, stream.ResponseHeader().Get(edge.HeaderConnection)
}

// Holds REQ-113 (what is for one connection reaches that one: a client's new stream ends the one before it, and nobody
// else's word does).
func TestStreamIsReplaced(t *testing.T) {
	t.Parallel()
	board := &switchboard{ears: map[string]func(edge.Word){}}
	f := newFixture(t, func(p *parts) { p.Lines = board })
	acme, rival := f.Tenant(t, "acme"), f.Tenant(t, "rival")
	ada := acme.Person(t, "ada")
	_, hers := acme.TokenOf(t, ada)
	channel := acme.Channel(t, "a", ada)
	first, address := f.subscribe(t, hers, "")
	f.subscribe(t, acme.Token, address)  // another account of the tenant
	f.subscribe(t, rival.Token, address) // another tenant
	must(t, board.Tell(t.Context(), address, edge.Word{Event: "else", Tenant: string(acme.ID), Account: ada.ID}))
	must(t, board.Tell(t.Context(), address, edge.Word{Event: edge.WordReplaced, Tenant: string(rival.ID), Account: ada.ID}))
	_, err := f.messages(acme.Token).PostMessage(t.Context(), request(&compassv1.PostMessageRequest{
		ChannelId: channel.ID, ClientId: "1", Blocks: textBlocks("still there"),
	}))
	must(t, err)
	if !first.Receive() || first.Msg().GetMessage() == nil {
		t.Fatalf("told %v, %v: want the stream to go on", first.Msg(), first.Err())
	}
	second, other := f.subscribe(t, hers, address)
	for first.Receive() {
		if first.Msg().GetHeartbeat() == nil {
			t.Errorf("told %v", first.Msg())
		}
	}
	wants(t, "the stream that was replaced", first.Err(), connect.CodeAborted)
	if other == address || other == "" {
		t.Errorf("the new stream's address is %q", other)
	}
	_, err = f.messages(acme.Token).PostMessage(t.Context(), request(&compassv1.PostMessageRequest{
		ChannelId: channel.ID, ClientId: "2", Blocks: textBlocks("goes on"),
	}))
	must(t, err)
	if !second.Receive() || second.Msg().GetMessage() == nil {
		t.Fatalf("told %v, %v", second.Msg(), second.Err())
	}

	ask := request(&compassv1.SubscribeCommsRequest{})
	ask.Header().Set(edge.HeaderReplaces, "compass.bcast.*")
	refused, err := f.messages(hers).SubscribeComms(t.Context(), ask)
	must(t, err)
	if refused.Receive() {
		t.Error("an address that is none was taken")
	}
	wants(t, "an address that is none", refused.Err(), connect.CodeInvalidArgument)
	if n := board.count(); n != 3 {
		t.Errorf("%d streams are listened for, want the three that are open", n)
	}

	board.down = errors.New("no broker")
	if _, address := f.subscribe(t, hers, ""); address != "" {
		t.Errorf("without a broker the address is %q", address)
	}
}
