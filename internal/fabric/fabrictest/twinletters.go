package fabrictest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// announce stores a letter in its place, unless it is there. Called under the broker's mu.
func (q *queue) announce(stream string, letter fabric.DeadLetter) error {
	place := letter.Place(stream)
	if _, err := naming.DeadLetterSubject(place); err != nil {
		return fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
	}
	for _, d := range q.dead {
		if d.Place(stream) == place {
			return nil
		}
	}
	letter.Error = strings.NewReplacer("\r", " ", "\n", " ").Replace(letter.Error)
	q.deadSeq++
	letter.Sequence = q.deadSeq
	q.dead = append(q.dead, letter)
	return nil
}

// Announce implements fabric.DeadLetterBox.
func (f *Twin) Announce(_ context.Context, stream string, letter fabric.DeadLetter) error {
	if letter.OriginalSubject == "" {
		subject, err := naming.QueueSubject(stream, letter.Ref.Tenant, string(letter.Ref.Kind))
		if err != nil {
			return fmt.Errorf("%w: %w", fabric.ErrBadRef, err)
		}
		letter.OriginalSubject = subject
	}
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	if err := f.b.reachable(); err != nil {
		return err
	}
	q := f.b.queues[stream]
	if q == nil {
		return fabric.ErrUnavailable
	}
	return q.announce(stream, letter)
}

// List implements fabric.DeadLetterBox.
func (f *Twin) List(_ context.Context, stream, tenant string, fn func(fabric.DeadLetter) bool) error {
	f.b.mu.Lock()
	if err := f.b.reachable(); err != nil {
		f.b.mu.Unlock()
		return err
	}
	var all []fabric.DeadLetter
	if q := f.b.queues[stream]; q != nil {
		all = slices.Clone(q.dead)
	}
	f.b.mu.Unlock()
	for _, d := range all {
		if (tenant == "" || d.Ref.Tenant == tenant) && !fn(d) {
			return nil
		}
	}
	return nil
}

// Replay implements fabric.DeadLetterBox.
func (f *Twin) Replay(ctx context.Context, stream string, letter fabric.DeadLetter) error {
	if letter.Ref.RowID == "" || letter.Ref.Version == 0 {
		return fmt.Errorf("%w: nobody could read it", fabric.ErrBadRef)
	}
	duplicate, err := f.put(stream, letter.Ref, letter.Replay+1)
	if err != nil {
		return err
	}
	if duplicate {
		return fabric.ErrDuplicate
	}
	return f.Remove(ctx, stream, letter)
}

// Remove implements fabric.DeadLetterBox.
func (f *Twin) Remove(_ context.Context, stream string, letter fabric.DeadLetter) error {
	f.b.mu.Lock()
	defer f.b.mu.Unlock()
	if err := f.b.reachable(); err != nil {
		return err
	}
	q := f.b.queues[stream]
	if q == nil {
		return nil
	}
	i := slices.IndexFunc(q.dead, func(d fabric.DeadLetter) bool { return d.Sequence == letter.Sequence })
	if i < 0 {
		return nil
	}
	if q.dead[i].Place(stream) != letter.Place(stream) {
		return fabric.ErrMismatch
	}
	q.dead = slices.Delete(q.dead, i, i+1)
	return nil
}
