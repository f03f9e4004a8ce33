package wire

import (
	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// DeadLetter is a dead letter as the API shows it.
func DeadLetter(d store.DeadLetter) *compassv1.DeadLetter {
	return &compassv1.DeadLetter{
		MessageId: d.Message, RecipientId: d.Recipient, ChannelId: d.Channel, Pos: d.Pos,
		Attempts: int32(d.Attempts), Reason: d.Reason, //nolint:gosec // columns of 32 bits
		FirstUnixMs: d.FirstUnixMs, LastUnixMs: d.LastUnixMs, Replayed: int32(d.Replayed), //nolint:gosec // as above
	}
}

// FromDeadLetterFilter reads a filter; an absent one selects all, and so does an empty field.
func FromDeadLetterFilter(f *compassv1.DeadLetterFilter) (store.DeadLetterFilter, error) {
	out := store.DeadLetterFilter{Message: f.GetMessageId(), Recipient: f.GetRecipientId(), Channel: f.GetChannelId()}
	for prefix, id := range map[string]string{
		naming.MessagePrefix: out.Message, naming.AccountPrefix: out.Recipient, naming.ChannelPrefix: out.Channel,
	} {
		if id == "" {
			continue
		}
		if err := ID(prefix, id); err != nil {
			return out, err
		}
	}
	return out, nil
}

// Owed is what an agent has not acknowledged, as the API shows it.
func Owed(o store.Owed) *compassv1.ListOwedResponse_Owed {
	return &compassv1.ListOwedResponse_Owed{
		AgentId: o.Agent, ChannelId: o.Channel, Count: o.Count, Acked: o.Acked, LastPos: o.LastPos,
	}
}

// Status is a tenant in figures, as the API shows it.
func Status(s store.Status) *compassv1.GetStatusResponse {
	return &compassv1.GetStatusResponse{
		TenantId: string(s.ID), Slug: s.Slug, Stream: s.Stream, Messages: s.Messages, Owed: s.Owed, Held: s.Held,
		DeadLetters: s.DeadLetters, LiveSessions: s.LiveSessions,
	}
}
