package backend

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// Keys, in the Secret of an object's keys, of the life of its API token. What is published is a copy of the first.
const (
	keyTokenNow      = "api.token"
	keyTokenNext     = "api.next"     // stored, and not known to the database for sure
	keyTokenPrevious = "api.previous" // good until the overlap is over
	keyTokenAsked    = "api.rotate"   // the value of the annotation that was obeyed last
)

// TokenLife says how long a token is good and how its successor takes its place.
type TokenLife struct {
	Period  time.Duration // 0: until somebody asks
	Overlap time.Duration // in which both are good
	Asked   string        // the value of the annotation; another one asks for a successor now
	Now     time.Time
}

// Token is one that opens the admin account of a tenant.
type Token struct {
	Text  []byte
	Since time.Time
	Kept  map[string][]byte // what the Secret of the object's keys holds
}

// tokens are those of a tenant's admin, as the database has them.
type tokens interface {
	EnsureAdmin(ctx context.Context, at Place, tenant store.TenantID, token string) error
	TokenSince(ctx context.Context, at Place, tenant store.TenantID, token string) (time.Time, error)
	RevokeToken(ctx context.Context, at Place, tenant store.TenantID, token string) error
}

// TokenKeeper keeps the API token of one object.
type TokenKeeper struct {
	Tokens tokens
	Kids   kube.Children
	Secret *corev1.Secret // of the object's keys; made where it is not there
	Tenant store.TenantID
	Mint   func() (string, error)
	// Whole refuses a Secret that has lost what was there before, so that no token passes for a new beginning; nil refuses none.
	Whole func(have map[string][]byte) error
}

// Keep returns a token that opens, making it or its successor where it is time. Every text is stored before the database
// hears of it, and the database knows a successor before anybody is told, so wherever it is interrupted it goes on from
// there, and at each moment the published token opens.
func (k TokenKeeper) Keep(ctx context.Context, at Place, life TokenLife) (Token, error) {
	kept, err := kube.Keep(ctx, k.Kids, nil, k.Secret, func(have map[string][]byte) (map[string][]byte, error) {
		if len(have[keyTokenNow]) > 0 {
			return nil, nil
		}
		if k.Whole != nil {
			if err := k.Whole(have); err != nil {
				return nil, err
			}
		}
		token, err := k.Mint()
		return map[string][]byte{keyTokenNow: []byte(token), keyTokenAsked: []byte(life.Asked)}, err
	})
	if err != nil {
		return Token{}, err
	}
	due, err := k.due(ctx, at, kept, life)
	if err != nil {
		return Token{}, err
	}
	if due {
		if kept, err = k.begin(ctx, at, kept, life); err != nil {
			return Token{}, err
		}
	}
	if next := kept[keyTokenNext]; len(next) > 0 {
		if err := k.Tokens.EnsureAdmin(ctx, at, k.Tenant, string(next)); err != nil {
			return Token{}, err
		}
		kept, err = kube.Change(ctx, k.Kids, k.Secret, map[string][]byte{
			keyTokenNow: next, keyTokenPrevious: kept[keyTokenNow], keyTokenNext: nil,
		})
		if err != nil {
			return Token{}, err
		}
	}
	return k.now(ctx, at, kept, life)
}

// due: somebody asked, or the token is old. One that was just made has no age yet.
func (k TokenKeeper) due(ctx context.Context, at Place, kept map[string][]byte, life TokenLife) (bool, error) {
	if len(kept[keyTokenNext]) > 0 {
		return false, nil // under way
	}
	if life.Asked != "" && life.Asked != string(kept[keyTokenAsked]) {
		return true, nil
	}
	if life.Period <= 0 {
		return false, nil
	}
	since, err := k.Tokens.TokenSince(ctx, at, k.Tenant, string(kept[keyTokenNow]))
	return err == nil && !since.IsZero() && !life.Now.Before(since.Add(life.Period)), err
}

// begin stores a successor. Only two are good at a time, so one that is still in its overlap ends.
func (k TokenKeeper) begin(ctx context.Context, at Place, kept map[string][]byte, life TokenLife) (map[string][]byte, error) {
	if previous := kept[keyTokenPrevious]; len(previous) > 0 {
		if err := k.Tokens.RevokeToken(ctx, at, k.Tenant, string(previous)); err != nil {
			return nil, err
		}
	}
	next, err := k.Mint()
	if err != nil {
		return nil, err
	}
	return kube.Change(ctx, k.Kids, k.Secret, map[string][]byte{
		keyTokenNext: []byte(next), keyTokenAsked: []byte(life.Asked), keyTokenPrevious: nil,
	})
}

// now sees that the token opens, and ends the one before it when its time is over.
func (k TokenKeeper) now(ctx context.Context, at Place, kept map[string][]byte, life TokenLife) (Token, error) {
	token := Token{Text: kept[keyTokenNow], Kept: kept}
	if err := k.Tokens.EnsureAdmin(ctx, at, k.Tenant, string(token.Text)); err != nil {
		return Token{}, err
	}
	var err error
	if token.Since, err = k.Tokens.TokenSince(ctx, at, k.Tenant, string(token.Text)); err != nil {
		return Token{}, err
	}
	previous := kept[keyTokenPrevious]
	if len(previous) == 0 || life.Now.Before(token.Since.Add(life.Overlap)) {
		return token, nil
	}
	if err := k.Tokens.RevokeToken(ctx, at, k.Tenant, string(previous)); err != nil {
		return Token{}, err
	}
	token.Kept, err = kube.Change(ctx, k.Kids, k.Secret, map[string][]byte{keyTokenPrevious: nil})
	return token, err
}
