package tenant

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// limits are column tenants.limits: sizes in bytes, durations in Go's form.
type limits struct {
	Messages messageLimits  `json:"messages"`
	Database databaseLimits `json:"database"`
}

type messageLimits struct {
	PerSecond int32 `json:"perSecond"`
	Burst     int32 `json:"burst"`
	MaxBytes  int64 `json:"maxBytes"`
}

type databaseLimits struct {
	StatementTimeout string `json:"statementTimeout"`
	Transactions     int32  `json:"transactions"`
}

func desireLimits(spec v1alpha1.TenantLimits) (json.RawMessage, error) {
	return json.Marshal(limits{
		Messages: messageLimits{PerSecond: spec.Messages.PerSecond, Burst: spec.Messages.Burst, MaxBytes: spec.Messages.MaxBytes.Value()},
		Database: databaseLimits{StatementTimeout: spec.Database.StatementTimeout, Transactions: spec.Database.Transactions},
	})
}

// desireAccount is the tenant's NATS account.
func desireAccount(s *scope) fabric.Account {
	spec := s.tenant.Spec.Limits.NATS
	return fabric.TenantAccount(fabric.TenantAccountSpec{
		Tenant: string(s.row.ID), Keys: s.keys, EventTap: s.tenant.Spec.NATS.EventTap, Runners: s.tenant.Spec.NATS.Runners, Revoked: s.revoked,
		Limits: fabric.Limits{Connections: orZero(spec.Connections), Subscriptions: orZero(spec.Subscriptions), Payload: spec.Payload.Value()},
	}, s.at.Keys.Compass, s.at.Owner())
}

// desireTokenLife is what the spec and whoever asked for a rotation want of the API token.
func desireTokenLife(t *v1alpha1.CompassTenant, now time.Time) (backend.TokenLife, error) {
	life := backend.TokenLife{Asked: t.Annotations[v1alpha1.AnnotationRotate], Now: now}
	var err1, err2 error
	life.Period, err1 = time.ParseDuration(t.Spec.Credentials.RotationPeriod)
	life.Overlap, err2 = time.ParseDuration(t.Spec.Credentials.Overlap)
	if err := errors.Join(err1, err2); err != nil {
		return life, fmt.Errorf("spec.credentials: %w", err)
	}
	return life, nil
}

func orZero(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// secret is an empty Secret of this tenant's.
func (s *scope) secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.key.Namespace, Name: name, Labels: kube.Labels(naming.LabelTenant, s.key.Name, naming.ComponentSecret),
	}}
}

// apiSecret is what somebody needs to call the API as the tenant's admin.
func (s *scope) apiSecret(token []byte) *corev1.Secret {
	secret := s.secret(s.names.API)
	secret.Data = map[string][]byte{backend.KeyURL: []byte(s.at.Endpoint), backend.KeyToken: token, backend.KeyCA: s.at.CA}
	return secret
}
