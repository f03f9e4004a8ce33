package tenant

import (
	"context"
	"errors"
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

// ensureNATS publishes what the tenant enters NATS with: credentials with which it reads its own broadcasts, and a token for
// the next Runner of its own fleet. Nothing is published where nothing is asked for. Whom its account lets in and whom it
// refuses is told in ensureAccount.
func (r *Reconciler) ensureNATS(ctx context.Context, s *scope) error {
	had := len(s.token.Kept[keyTapCreds]) > 0 || len(s.token.Kept[keyEnrolment]) > 0
	token, err1 := r.ensureFleet(ctx, s)
	creds, err2 := r.ensureTap(ctx, s)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	secret := s.secret(s.names.NATS)
	if token == nil && creds == nil {
		if !had {
			return nil
		}
		return gone(kube.Remove(ctx, s.kids, s.tenant, secret))
	}
	secret.Data = map[string][]byte{backend.KeyURL: []byte(strings.Join(s.at.NATS, ","))}
	for key, value := range map[string][]byte{backend.KeyCreds: creds, backend.KeyToken: token, backend.KeyCA: s.at.NATSCA} {
		if len(value) > 0 {
			secret.Data[key] = value
		}
	}
	if _, err := kube.Apply(ctx, s.kids, s.tenant, secret); err != nil {
		return err
	}
	s.inNATS = true
	return nil
}

// gone: a Secret without finalizers is gone as soon as it was asked to go.
func gone(err error) error {
	if fault.IsWaiting(err) {
		return nil
	}
	return err
}

// ensureTap makes the credentials that are in force, or ends them. It returns those; none where no tap is asked for.
func (r *Reconciler) ensureTap(ctx context.Context, s *scope) (creds []byte, err error) {
	kept := s.token.Kept
	made := s.rotation()
	switch {
	case !s.tenant.Spec.NATS.EventTap && len(kept[keyTapCreds]) == 0:
		return nil, nil
	case !s.tenant.Spec.NATS.EventTap:
		_, err := kube.Change(ctx, s.kids, s.secret(s.names.Keys), map[string][]byte{
			keyTapCreds: nil, keyTapUser: nil, keyTapMade: nil, keyTapFormer: former(kept, r.Now()),
		})
		return nil, err
	case len(kept[keyTapCreds]) > 0 && string(kept[keyTapMade]) == made:
		return kept[keyTapCreds], nil
	}
	keys, missing, err := fabric.CompleteTenantKeys(kept)
	switch {
	case err != nil:
		return nil, damaged(err)
	case missing != nil:
		return nil, withoutAccount()
	}
	user, creds, err := backend.User(keys, fabric.RoleTap, "", r.Now())
	if err != nil {
		return nil, err
	}
	_, err = kube.Change(ctx, s.kids, s.secret(s.names.Keys), map[string][]byte{
		keyTapCreds: creds, keyTapUser: []byte(user), keyTapMade: []byte(made), keyTapFormer: former(kept, r.Now().Add(s.life.Overlap)),
	})
	return creds, err
}

func withoutAccount() error {
	return fault.Waiting(v1alpha1.ReasonWaitingForDependency, "the keys of the tenant's NATS account are not made yet: see condition AccountReady")
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
