package fabric

import (
	"context"

	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/fabric/internal/counting"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// take judges one delivery and answers it. It runs where its session runs, so there is never another one beside it.
func (l *lane) take(ctx context.Context, msg *nats.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		l.f.cfg.Logger.Error("Message without metadata on the queue", "subject", msg.Subject, "error", err)
		return
	}
	v := l.judge(ctx, msg, meta)
	l.f.metrics.took(ctx, v.Outcome)
	if err := l.answer(ctx, msg, meta, v); err != nil {
		// JetStream delivers again after AckWait, and the verdict is found again.
		l.f.cfg.Logger.Warn("Answer could not be sent", "subject", msg.Subject, "outcome", string(v.Outcome), "error", err)
	}
}

func (l *lane) judge(ctx context.Context, msg *nats.Msg, meta *nats.MsgMetadata) counting.Verdict {
	delivered, known := int(meta.NumDelivered), l.known[meta.Sequence.Stream] //nolint:gosec // a count
	if v, ask := l.rules.OnEntry(delivered, known); !ask {
		return v
	}
	ref, _, err := DecodeRef(l.f.cfg.Stream, wireOf(msg.Subject, msg.Header, msg.Data))
	if err != nil {
		return counting.Verdict{Outcome: counting.Park, Reason: ReasonUndecodable, Err: err}
	}
	if ref.Kind != l.kind {
		return counting.Verdict{Outcome: counting.Park, Reason: ReasonUnknownKind, Err: ErrBadRef}
	}
	ctx, cancel := context.WithTimeout(ctx, l.ackWait)
	defer cancel()
	began := l.f.cfg.Now()
	l.f.metrics.hops.Took(ctx, telemetry.HopHint, began.Sub(meta.Timestamp))
	err = counting.Guard(func() error { return l.fn(ctx, ref) })
	l.f.metrics.callbacks.Record(ctx, l.f.cfg.Now().Sub(began).Seconds())
	return l.rules.OnReturn(delivered, known, err)
}

func (l *lane) answer(ctx context.Context, msg *nats.Msg, meta *nats.MsgMetadata, v counting.Verdict) error {
	seq := meta.Sequence.Stream
	switch v.Outcome {
	case counting.Ack:
		delete(l.known, seq)
		return msg.Ack()
	case counting.Retry:
		l.remember(seq).Excused++
		return msg.NakWithDelay(v.Delay)
	case counting.Nak:
		l.remember(seq)
		l.f.cfg.Logger.Warn("Callback failed", "subject", msg.Subject, "attempt", meta.NumDelivered, "retry", v.Delay, "error", v.Err)
		return msg.NakWithDelay(v.Delay)
	case counting.Park:
		return l.park(ctx, msg, meta, v)
	}
	return nil
}

// park stores the dead letter and only then acks. If it cannot be stored, the verdict is kept and the reference put off:
// the callback has spoken, it is not asked again (lessons B29).
func (l *lane) park(ctx context.Context, msg *nats.Msg, meta *nats.MsgMetadata, v counting.Verdict) error {
	rec := l.remember(meta.Sequence.Stream)
	rec.Parking = &v
	ctx, cancel := context.WithTimeout(ctx, l.f.cfg.PublishTimeout)
	defer cancel()
	if err := l.f.parkMessage(ctx, l.f.cfg.Stream, msg, l.letter(meta, rec, v), l.f.cfg.Now()); err != nil {
		l.f.cfg.Logger.Error("Dead letter could not be stored", "subject", msg.Subject, "reason", v.Reason, "error", err)
		l.suspect() // its stream may be gone
		return msg.NakWithDelay(l.rules.Backoff[0])
	}
	l.f.cfg.Logger.Warn("Reference parked", "subject", msg.Subject, "reason", v.Reason, "attempts", meta.NumDelivered, "error", v.Err)
	if err := msg.AckSync(nats.Context(ctx)); err != nil {
		return err // kept on record: parking again finds the dead letter there
	}
	delete(l.known, meta.Sequence.Stream)
	return nil
}

func (l *lane) remember(seq uint64) *counting.Record {
	rec := l.known[seq]
	if rec == nil {
		rec = &counting.Record{}
		l.known[seq] = rec
	}
	return rec
}

// letter says how often the reference was tried and why it ends here.
func (l *lane) letter(meta *nats.MsgMetadata, rec *counting.Record, v counting.Verdict) DeadLetter {
	return DeadLetter{
		Attempts: l.rules.Attempts(int(meta.NumDelivered), rec), //nolint:gosec // a count
		Reason:   v.Reason, Error: v.Err.Error(), FirstSeen: meta.Timestamp,
	}
}
