package edge

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// told is a change of a message as the API tells it, made once for all streams that tell it one after the other.
type told struct {
	of     *store.Message
	prev   int64
	as     *compassv1.SubscribeCommsResponse
	encode func() ([]byte, error)
}

// changed maps a message for a stream that told prev before it.
func (e *Edge) changed(m *store.Message, prev int64) *compassv1.SubscribeCommsResponse {
	if last := e.told.Load(); last != nil && last.of == m && last.prev == prev {
		return last.as
	}
	as := &compassv1.SubscribeCommsResponse{Event: &compassv1.SubscribeCommsResponse_Message{
		Message: &compassv1.SubscribeCommsResponse_MessageChanged{Message: wire.Message(*m), PrevRev: prev},
	}}
	e.told.Store(&told{m, prev, as, sync.OnceValues(func() ([]byte, error) { return proto.Marshal(as) })})
	return as
}

// codec is the binary one of Connect, which encodes what was told last once.
type codec struct{ edge *Edge }

func (codec) Name() string { return "proto" }

func (c codec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend is what Connect calls where a codec has it.
func (c codec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	if last := c.edge.told.Load(); last != nil && message == any(last.as) {
		text, err := last.encode()
		return append(dst, text...), err
	}
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encode %T: no message of protobuf", message)
	}
	return proto.MarshalOptions{}.MarshalAppend(dst, m)
}

func (codec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("decode %T: no message of protobuf", message)
	}
	if err := proto.Unmarshal(data, m); err != nil {
		return fmt.Errorf("decode %T: %w", message, err)
	}
	return nil
}
