package edge

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Streams that tell the same after the same share what is mapped and encoded; whoever told something else before it, or
// tells another message, has its own.
func TestToldIsMadeOnce(t *testing.T) {
	t.Parallel()
	e := &Edge{}
	one := &store.Message{ID: "m_1", Channel: "c_1", Author: "a_1", Rev: 7, Blocks: []store.Block{store.Text("one")}}
	two := &store.Message{ID: "m_2", Channel: "c_1", Author: "a_1", Rev: 8, Blocks: []store.Block{store.Text("two")}}
	first := e.changed(one, 6)
	if again := e.changed(one, 6); again != first {
		t.Error("the same change was mapped twice")
	}
	if other := e.changed(one, 3); other.GetMessage().GetPrevRev() != 3 {
		t.Errorf("told after 3: %v", other)
	}
	if other := e.changed(two, 3); other.GetMessage().GetMessage().GetId() != "m_2" {
		t.Errorf("another message told after the same: %v", other)
	}
	for name, as := range map[string]*compassv1.SubscribeCommsResponse{
		"the last one": first, "another stream's": e.changed(one, 3), "the next message": e.changed(two, 7), "an earlier one, told late": first,
		"a heartbeat": {Event: &compassv1.SubscribeCommsResponse_Heartbeat_{Heartbeat: &compassv1.SubscribeCommsResponse_Heartbeat{}}},
	} {
		for range 2 {
			got, err := codec{e}.MarshalAppend([]byte("before"), as)
			if err != nil {
				t.Fatal(err)
			}
			var back compassv1.SubscribeCommsResponse
			body, found := bytes.CutPrefix(got, []byte("before"))
			if err := (codec{e}).Unmarshal(body, &back); err != nil || !found || !proto.Equal(&back, as) {
				t.Errorf("%s: encoded as %v (%v), want %v", name, &back, err, as)
			}
		}
	}
	if first.GetMessage().GetPrevRev() != 6 || first.GetMessage().GetMessage().GetId() != "m_1" {
		t.Errorf("told %v", first)
	}
	if _, err := (codec{e}).Marshal("no message"); err == nil {
		t.Error("encoded what is no message")
	}
	if err := (codec{e}).Unmarshal(nil, "no message"); err == nil {
		t.Error("decoded into what is no message")
	}
}
