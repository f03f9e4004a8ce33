package fabric

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// List see DeadLetterBox. It reads the stream as it is when called; nothing is consumed.
func (f *Fabric) List(ctx context.Context, stream, tenant string, fn func(DeadLetter) bool) error {
	s, err := f.deadStream(ctx, stream)
	if errors.Is(err, ErrAbsent) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list dead letters of stream %s: %w", stream, err)
	}
	filter, err := naming.DeadLetterFilter(stream)
	if tenant != "" {
		filter, err = naming.DeadLetterTenantFilter(stream, tenant)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	last := s.CachedInfo().State.LastSeq
	for seq := uint64(1); seq <= last; {
		msg, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(filter))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list dead letters of stream %s: %w", stream, interpret(err))
		}
		letter, err := letterOf(msg.Subject, msg.Header, msg.Data, msg.Sequence)
		if err == nil && !fn(letter) {
			return nil
		}
		seq = msg.Sequence + 1
	}
	return nil
}

// Replay see DeadLetterBox.
func (f *Fabric) Replay(ctx context.Context, stream string, letter DeadLetter) error {
	if letter.Ref.RowID == "" || letter.Ref.Version == 0 {
		return fmt.Errorf("replay dead letter %d: %w: nobody could read it", letter.Sequence, ErrBadRef)
	}
	duplicate, err := f.put(ctx, stream, letter.Ref, letter.Replay+1)
	if err != nil {
		return fmt.Errorf("replay dead letter %d: %w", letter.Sequence, err)
	}
	if duplicate { // stored nothing, so nothing may be removed either (lessons B5)
		return fmt.Errorf("replay dead letter %d: %w", letter.Sequence, ErrDuplicate)
	}
	return f.Remove(ctx, stream, letter)
}

// Remove see DeadLetterBox.
func (f *Fabric) Remove(ctx context.Context, stream string, letter DeadLetter) error {
	s, err := f.deadStream(ctx, stream)
	if errors.Is(err, ErrAbsent) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove dead letter %d: %w", letter.Sequence, err)
	}
	// A sequence means another letter after the volume was lost: compare before deleting.
	msg, err := s.GetMsg(ctx, letter.Sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove dead letter %d: %w", letter.Sequence, interpret(err))
	}
	want, err := naming.DeadLetterSubject(letter.Place(stream))
	if err != nil || msg.Subject != want {
		return fmt.Errorf("remove dead letter %d: %w", letter.Sequence, ErrMismatch)
	}
	if err := s.DeleteMsg(ctx, letter.Sequence); err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("remove dead letter %d: %w", letter.Sequence, interpret(err))
	}
	return nil
}

func (f *Fabric) deadStream(ctx context.Context, stream string) (jetstream.Stream, error) {
	name, err := naming.DeadLetterStreamName(stream)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	js, err := f.jetStream()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.PublishTimeout)
	defer cancel()
	s, err := js.Stream(ctx, name)
	return s, interpret(err)
}
