package edge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/wire"
)

type callerKey struct{}

// Caller returns who the request of ctx speaks for. The error is wire.ErrUnauthenticated where nobody was authenticated:
// the hub is given this function, so that it need not import the edge.
func Caller(ctx context.Context) (store.Caller, error) {
	c, ok := ctx.Value(callerKey{}).(store.Caller)
	if !ok {
		return store.Caller{}, wire.ErrUnauthenticated
	}
	return c, nil
}

// authenticated returns a context that is scoped to the caller of the token in the header. The tenant in the token chooses
// where its hash is looked for and is no authority (T5); unknown, revoked and foreign tokens are refused alike.
func (e *Edge) authenticated(ctx context.Context, header http.Header) (context.Context, error) {
	token := bearer(header)
	if token == "" {
		return nil, fmt.Errorf("%w: a bearer token is needed", wire.ErrUnauthenticated)
	}
	caller, err := e.speaksFor(ctx, token)
	if err != nil {
		return nil, err
	}
	ctx = store.WithTenant(ctx, caller.Tenant)
	return context.WithValue(ctx, callerKey{}, caller), nil
}

// bearer is the token of a request, "" where it has none. The scheme's case does not matter (RFC 7235).
func bearer(header http.Header) string {
	scheme, token, _ := strings.Cut(header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

func (e *Edge) speaksFor(ctx context.Context, token string) (store.Caller, error) {
	tenant, _, err := naming.ParseToken(token)
	if err != nil {
		return store.Caller{}, wire.ErrUnauthenticated
	}
	caller, err := e.Store.Authenticate(store.WithTenant(ctx, store.TenantID(tenant)), naming.TokenHash(token))
	if errors.Is(err, store.ErrNotFound) {
		return store.Caller{}, wire.ErrUnauthenticated
	}
	return caller, err
}
