package tenant

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
)

// Keys, in <name>-keys, of the tap's credentials: the text is kept, because a JWT says when it was signed.
const (
	keyTapCreds  = "tap.creds"
	keyTapUser   = "tap.user"   // public key of who they are of
	keyTapMade   = "tap.made"   // the rotation that they were made for
	keyTapFormer = "tap.former" // who had them before, each with the time, in milliseconds, from which it is refused
)

// ensureTap publishes credentials with which the tenant reads its own broadcasts, or takes them away. Whom its account lets
// in and whom it refuses is told in ensureAccount.
func (r *Reconciler) ensureTap(ctx context.Context, s *scope) error {
	kept := s.token.Kept
	switch {
	case s.tenant.Spec.NATS.EventTap:
		return r.giveTap(ctx, s, kept)
	case len(kept[keyTapCreds]) > 0:
		return r.takeTap(ctx, s, kept)
	}
	return nil
}

func (r *Reconciler) giveTap(ctx context.Context, s *scope, kept map[string][]byte) (err error) {
	if made := s.rotation(); len(kept[keyTapCreds]) == 0 || string(kept[keyTapMade]) != made {
		keys, missing, err := fabric.CompleteTenantKeys(kept)
		if err != nil {
			return damaged(err)
		}
		if missing != nil {
			return fault.Waiting(v1alpha1.ReasonWaitingForDependency, "the keys of the tenant's NATS account are not made yet: see condition AccountReady")
		}
		user, creds, err := backend.User(keys, fabric.RoleTap, "", r.Now())
		if err != nil {
			return err
		}
		kept, err = kube.Change(ctx, s.kids, s.secret(s.names.Keys), map[string][]byte{
			keyTapCreds: creds, keyTapUser: []byte(user), keyTapMade: []byte(made),
			keyTapFormer: former(kept, r.Now().Add(s.life.Overlap)),
		})
		if err != nil {
			return err
		}
	}
	secret := s.secret(s.names.NATS)
	secret.Data = map[string][]byte{backend.KeyURL: []byte(strings.Join(s.at.NATS, ",")), backend.KeyCreds: kept[keyTapCreds]}
	if len(s.at.NATSCA) > 0 {
		secret.Data[backend.KeyCA] = s.at.NATSCA
	}
	if _, err = kube.Apply(ctx, s.kids, s.tenant, secret); err != nil {
		return err
	}
	s.tap = true
	return nil
}

func (r *Reconciler) takeTap(ctx context.Context, s *scope, kept map[string][]byte) error {
	if err := kube.Remove(ctx, s.kids, s.tenant, s.secret(s.names.NATS)); err != nil && !fault.IsWaiting(err) {
		return err
	}
	_, err := kube.Change(ctx, s.kids, s.secret(s.names.Keys), map[string][]byte{
		keyTapCreds: nil, keyTapUser: nil, keyTapMade: nil, keyTapFormer: former(kept, r.Now()),
	})
	return err
}

// former adds who has the credentials now to those who had them.
func former(kept map[string][]byte, until time.Time) []byte {
	if len(kept[keyTapUser]) == 0 {
		return kept[keyTapFormer]
	}
	return fmt.Appendf(kept[keyTapFormer], "%s %d\n", kept[keyTapUser], until.UnixMilli())
}

// revoked are those who had credentials and are refused by now. What they were given was signed before.
func revoked(kept map[string][]byte, now time.Time) map[string]time.Time {
	out := map[string]time.Time{}
	for _, line := range strings.Split(string(kept[keyTapFormer]), "\n") {
		user, text, _ := strings.Cut(line, " ")
		ms, err := strconv.ParseInt(text, 10, 64)
		if until := time.UnixMilli(ms); err == nil && !now.Before(until) {
			out[user] = until
		}
	}
	return out
}
