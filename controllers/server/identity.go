package server

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
)

// Keys of <name>-keys beside the seeds: the two JWTs that a NATS server starts with. They are signed once, because another
// signature is another configuration, and that restarts the server.
const (
	keyOperatorJWT = "operator.jwt"
	keySystemJWT   = "sys.jwt"
)

// Keys of the other Secrets.
const (
	keyIssuers = "issuers.yaml" // config.LoadIssuers reads it
	seedBytes  = 32
)

// identity is who this installation is to NATS.
type identity struct {
	keys     fabric.Keys
	operator string // JWT
	system   string // JWT of the system account
	external *backend.External
}

// ensureIdentity makes the keys, once. They are never made anew: whoever lost them has to say so, because everything that
// NATS holds is bound to them.
func (r *Reconciler) ensureIdentity(ctx context.Context, s *scope) error {
	if err := r.mayBegin(ctx, s); err != nil {
		return err
	}
	if s.server.ExternalNATS() != nil {
		return r.ensureExternalIdentity(ctx, s)
	}
	owner := backend.Owner(s.key)
	kept, err := kube.Keep(ctx, s.kids, nil, s.secret(s.names.Keys), func(have map[string][]byte) (map[string][]byte, error) {
		return missingIdentity(have, owner)
	})
	if err != nil {
		return err
	}
	keys, _, err := fabric.CompleteKeys(kept)
	if err != nil {
		return damaged(s, err)
	}
	s.identity = &identity{keys: keys, operator: string(kept[keyOperatorJWT]), system: string(kept[keySystemJWT])}
	return r.ensureProcessKeys(ctx, s)
}

// ensureExternalIdentity is the same where somebody else's operator signs: only our own accounts have keys here.
func (r *Reconciler) ensureExternalIdentity(ctx context.Context, s *scope) error {
	x, err := backend.ReadExternal(ctx, s.kids, s.key.Namespace, s.server.ExternalNATS())
	if err != nil {
		return err
	}
	kept, err := kube.Keep(ctx, s.kids, nil, s.secret(s.names.Keys), func(have map[string][]byte) (map[string][]byte, error) {
		_, added, err := fabric.CompleteExternalKeys(have, x.Signer)
		return added, err
	})
	if err != nil {
		return err
	}
	keys, _, err := fabric.CompleteExternalKeys(kept, x.Signer)
	if err != nil {
		return damaged(s, err)
	}
	s.identity = &identity{keys: keys, external: &x}
	return r.ensureProcessKeys(ctx, s)
}

// ensureProcessKeys makes what Servers and workers sign with.
func (r *Reconciler) ensureProcessKeys(ctx context.Context, s *scope) error {
	if err := r.ensureCommandKey(ctx, s); err != nil {
		return err
	}
	return r.ensureIssuers(ctx, s)
}

// mayBegin: keys that are there are used. Without them an installation begins, which takes a database, so that a mistake
// there leaves nothing half made; or NATS servers were seen to trust a key, and the Secret with that key is gone.
func (r *Reconciler) mayBegin(ctx context.Context, s *scope) error {
	key := client.ObjectKey{Namespace: s.key.Namespace, Name: s.names.Keys}
	_, err := kube.Read(ctx, s.kids, key)
	seen := s.server.Status.NATS
	switch {
	case !fault.IsWaiting(err):
		return err
	case seen != nil && seen.OperatorKey != "":
		return fault.Waiting(v1alpha1.ReasonIdentityConflict, fmt.Sprintf("Secret %s with operator key %s is gone, and NATS trusts no other: "+
			"restore it from a backup, or delete this object, the StatefulSet's volumes and then create it anew", key, seen.OperatorKey))
	case s.database == nil:
		return fault.Waiting(v1alpha1.ReasonWaitingForDependency, "NATS is set up once the database is: see condition DatabaseReady")
	}
	return nil
}

func missingIdentity(have map[string][]byte, owner string) (map[string][]byte, error) {
	keys, added, err := fabric.CompleteKeys(have)
	if err != nil {
		return nil, fault.Waiting(v1alpha1.ReasonInvalidSecret, err.Error()+": restore the Secret from a backup")
	}
	missing := map[string][]byte{}
	maps.Copy(missing, added)
	if len(have[keyOperatorJWT]) == 0 {
		text, err := fabric.OperatorJWT(keys, owner)
		if err != nil {
			return nil, err
		}
		missing[keyOperatorJWT] = []byte(text)
	}
	if len(have[keySystemJWT]) == 0 {
		text, err := fabric.SystemAccount(keys, owner).Sign(keys.Signing[0])
		if err != nil {
			return nil, err
		}
		missing[keySystemJWT] = []byte(text)
	}
	return missing, nil
}

func damaged(s *scope, err error) error {
	if err == nil {
		return nil // not whole: nothing was made with them
	}
	return fault.Waiting(v1alpha1.ReasonInvalidSecret,
		fmt.Sprintf("Secret %s/%s: %v: restore it from a backup", s.key.Namespace, s.names.Keys, err))
}

type commandKey struct {
	ID   string `json:"id"`
	Seed string `json:"seed"`
}

// ensureCommandKey makes the key that signs what is sent to Runners.
func (r *Reconciler) ensureCommandKey(ctx context.Context, s *scope) error {
	_, err := kube.Keep(ctx, s.kids, s.server, s.secret(s.names.CommandKey), func(have map[string][]byte) (map[string][]byte, error) {
		if len(have[backend.KeyCommandKeys]) > 0 {
			return nil, nil
		}
		seed := make([]byte, seedBytes)
		if _, err := io.ReadFull(r.Rand, seed); err != nil {
			return nil, fmt.Errorf("make command key: %w", err)
		}
		text, err := yaml.Marshal(map[string][]commandKey{"keys": {{ID: "k1", Seed: base64.StdEncoding.EncodeToString(seed)}}})
		return map[string][]byte{backend.KeyCommandKeys: text}, err
	})
	return err
}

// ensureIssuers publishes the keys with which Servers let Runners in.
func (r *Reconciler) ensureIssuers(ctx context.Context, s *scope) error {
	fleets, err := backend.Fleets(ctx, s.kids, s.key, s.identity.keys.Runners)
	if err != nil {
		return err
	}
	text, err := yaml.Marshal(map[string]any{"fleets": fleets})
	if err != nil {
		return fmt.Errorf("render issuers: %w", err)
	}
	secret := s.secret(s.names.Issuer)
	secret.Data = map[string][]byte{keyIssuers: text}
	_, err = kube.Apply(ctx, s.kids, s.server, secret)
	return err
}

// ensureCreds makes the NATS user that Servers are, who stays who he is, and keeps what verifies NATS beside it.
func (r *Reconciler) ensureCreds(ctx context.Context, s *scope, at backend.Place) error {
	secret := s.secret(s.names.Server)
	have, err := kube.Held(ctx, s.kids, secret)
	if err != nil {
		return err
	}
	creds, err := s.identity.keys.Compass.KeepCreds(have[backend.KeyCreds], fabric.UserOf{Role: fabric.RoleServer}, r.Now())
	if err != nil {
		return err
	}
	secret.Data = map[string][]byte{backend.KeyCreds: creds}
	if len(at.NATSCA) > 0 {
		secret.Data[backend.KeyCA] = at.NATSCA
	}
	_, err = kube.Apply(ctx, s.kids, s.server, secret)
	return err
}
