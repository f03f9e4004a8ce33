package comms

import (
	"context"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// slowly is a store whose reads are under way until they may go on.
type slowly struct {
	channels
	began, proceed chan struct{}
}

func (s slowly) MessagesBurst(ctx context.Context, _ store.Burst) (map[string]store.News, error) {
	close(s.began)
	<-s.proceed
	return nil, ctx.Err()
}

// Who began a read goes away; those that wait for it have their answer all the same.
func TestReadOutlivesWhoBeganIt(t *testing.T) {
	t.Parallel()
	reads := slowly{began: make(chan struct{}), proceed: make(chan struct{})}
	s := newShared(reads, func() time.Time { return time.Time{} }, 10)
	wants := func() []want { return []want{{channel: "c_1", span: span{0, 5}}} }
	for _, account := range []string{"a_1", "a_2"} {
		s.join(address{"t_1", "c_1"}, account, 0)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { _ = s.serve(ctx, "t_1", "a_1", wants()) }()
	<-reads.began
	_, theirs := s.look("t_1", "a_2", wants())
	cancel()
	close(reads.proceed)
	if <-theirs.done; theirs.err != nil {
		t.Errorf("whoever waits hears %v", theirs.err)
	}
}
