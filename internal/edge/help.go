package edge

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rigelbuild/compass-operator/internal/event"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

// errInternal is all that a caller reads of what is our fault.
var errInternal = errors.New("internal error")

const (
	defaultPage = 100
	maxPage     = 1000
)

// pageOf reads how a client pages: at most maxPage rows, standard where it does not say.
func pageOf(size int32, after string, standard int) (store.Page, error) {
	if size < 0 || len(after) > 256 || strings.ContainsRune(after, 0) {
		return store.Page{}, fmt.Errorf("%w: a page has 1 to %d rows and a token that was given", wire.ErrShape, maxPage)
	}
	limit := standard
	if size > 0 {
		limit = min(int(size), maxPage)
	}
	return store.Page{After: after, Limit: limit}, nil
}

// id names a value that a client sent and the prefix that it must have.
type id struct{ prefix, value string }

// valid refuses ids that cannot be any, so that nothing malformed reaches a statement.
func valid(ids ...id) error {
	for _, i := range ids {
		if err := wire.ID(i.prefix, i.value); err != nil {
			return err
		}
	}
	return nil
}

func account(v string) id { return id{naming.AccountPrefix, v} }
func channel(v string) id { return id{naming.ChannelPrefix, v} }
func message(v string) id { return id{naming.MessagePrefix, v} }

// channelChanged tells, after the commit, that a channel, its members or its pins changed.
func (e *Edge) channelChanged(ctx context.Context, id string) {
	tenant, _ := store.TenantFromContext(ctx)
	e.numbered(ctx, func(clock int64) event.Fact { return event.ChannelChanged(string(tenant), id, clock) })
}

// accessChanged tells, after the commit, that streams of the account must ask again whether they may go on.
func (e *Edge) accessChanged(ctx context.Context, account string) {
	tenant, _ := store.TenantFromContext(ctx)
	e.numbered(ctx, func(clock int64) event.Fact { return event.AccessChanged(string(tenant), account, clock) })
}

// numbered tells a fact about a row that has no number of its own. What cannot be numbered is not told: whoever listens
// looks for himself in time.
func (e *Edge) numbered(ctx context.Context, fact func(clock int64) event.Fact) {
	clock, err := e.Store.Number(ctx)
	if err != nil {
		e.Log.WarnContext(ctx, "A change is not told; listeners find it by polling", "error", err)
		return
	}
	e.Emitter.Emit(ctx, fact(clock))
}
