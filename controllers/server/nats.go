package server

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// ensureNATS runs NATS in operator mode, knowing its system account; the other accounts are pushed to it.
func (r *Reconciler) ensureNATS(ctx context.Context, s *scope) error {
	if s.server.ExternalNATS() != nil {
		at, err := s.place()
		if err != nil {
			return err
		}
		return r.Systems.Transport.Probe(ctx, at)
	}
	config, err := s.natsConfig()
	if err != nil {
		return fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	if err := r.ensureRoutes(ctx, s); err != nil {
		return err
	}
	for _, child := range []client.Object{s.natsConfigMap(config), s.natsService(), s.natsDoors(), s.natsBudget()} {
		if _, err := kube.Apply(ctx, s.kids, s.server, child); err != nil {
			return err
		}
	}
	set, err := kube.Apply(ctx, s.kids, s.server, s.natsStatefulSet(r.Images, config))
	if err != nil {
		return err
	}
	if !statefulSetReady(set) {
		return fault.Waiting(v1alpha1.ReasonWaitingForPods, waitingForPods("NATS", set.Namespace, s.selector(naming.ComponentNATS).MatchLabels))
	}
	return nil
}

// ensureRoutes makes, once, the certificate by which NATS servers know each other. Whoever can join them is one of them, so
// nothing but this certificate lets anybody in: the key that signed it is thrown away.
func (r *Reconciler) ensureRoutes(ctx context.Context, s *scope) error {
	if !s.natsClustered() {
		return nil
	}
	_, err := kube.Keep(ctx, s.kids, s.server, s.secret(s.names.NATSRoutes), func(have map[string][]byte) (map[string][]byte, error) {
		if len(have[corev1.TLSPrivateKeyKey]) > 0 {
			return nil, nil
		}
		by, leaf, err := newPeers("*."+s.natsDomain(), r.Now())
		return map[string][]byte{
			corev1.TLSCertKey: leaf.certificate, corev1.TLSPrivateKeyKey: leaf.key, backend.KeyCA: by.certificate,
		}, err
	})
	return err
}

// statefulSetReady reports whether every pod is of the newest revision and ready.
func statefulSetReady(set *appsv1.StatefulSet) bool {
	want := int32(1)
	if set.Spec.Replicas != nil {
		want = *set.Spec.Replicas
	}
	return set.Status.ObservedGeneration >= set.Generation && set.Status.ReadyReplicas >= want && set.Status.UpdatedReplicas >= want
}

// waitingForPods tells where to look.
func waitingForPods(what, namespace string, selector map[string]string) string {
	return what + " is starting: " + describePods(namespace, selector)
}

func describePods(namespace string, selector map[string]string) string {
	return fmt.Sprintf("kubectl -n %s describe pods -l %s=%s,%s=%s", namespace,
		naming.LabelComponent, selector[naming.LabelComponent], naming.LabelServer, selector[naming.LabelServer])
}

// ensureAccounts brings the accounts of Servers, workers and the shared fleet to every NATS server.
func (r *Reconciler) ensureAccounts(ctx context.Context, s *scope) error {
	at, err := s.place()
	if err != nil {
		return err
	}
	owner := backend.Owner(s.key)
	seen, err := r.Systems.Transport.EnsureAccounts(ctx, at, at.Servers,
		fabric.CompassAccount(s.identity.keys, owner), fabric.RunnersAccount(s.identity.keys, owner))
	if err != nil {
		return err
	}
	s.nats = &seen
	return r.bury(ctx, s, at, seen.Servers)
}

// bury sees that the accounts of deleted tenants stay deleted.
func (r *Reconciler) bury(ctx context.Context, s *scope, at backend.Place, servers int) error {
	graves, err := backend.GravesOf(s.kids, s.server)
	if err != nil {
		return err
	}
	stones, old, err := graves.Stones(ctx, r.Now())
	if err != nil || len(stones) == 0 {
		return err
	}
	if err := r.Systems.Transport.Bury(ctx, at, servers, stones); err != nil {
		return err
	}
	for _, account := range old {
		if err := graves.Fill(ctx, account); err != nil {
			return err
		}
	}
	return nil
}
