package stream

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// named bounds how many tenants a message lists.
const named = 5

// placeTenants makes the stream carry whom it should. What can be placed is, also where something else cannot.
func (r *Reconciler) placeTenants(ctx context.Context, s *scope) error {
	if err := r.resolve(ctx, s); err != nil {
		return err
	}
	siblings, err := s.siblings(ctx)
	if err != nil {
		return err
	}
	tenants, err := r.tenants(ctx, s)
	if err != nil {
		return err
	}
	tagged, err := s.tagged(ctx, siblings)
	if err != nil {
		return err
	}
	claims := claimsOf(siblings, tagged)
	p := desirePlacements(s.stream, claims, tenants)
	if s.consumer == nil {
		p.stayWithOthers()
	}
	waits, err := r.move(ctx, s, &p)
	s.placed = &p.mine
	if err != nil {
		return err
	}
	return unplaced(p, waits, claims, s.stream)
}

// tenants are those that the stream carries or could.
func (r *Reconciler) tenants(ctx context.Context, s *scope) ([]store.TenantRow, error) {
	if t := s.stream.Spec.Tenants; !t.All && t.Selector == nil {
		return r.Systems.Placements.TenantsOf(ctx, s.at, s.key.Name, t.Names)
	}
	return r.Systems.Placements.Tenants(ctx, s.at)
}

// tagged reads the labels of the server's CompassTenants, by slug, if any stream selects by them.
func (s *scope) tagged(ctx context.Context, siblings []v1alpha1.DeliveryStream) (map[string]labels.Set, error) {
	if _, err := metav1.LabelSelectorAsSelector(s.stream.Spec.Tenants.Selector); err != nil {
		return nil, fault.Terminal(v1alpha1.ReasonInvalidSpec, fmt.Errorf("spec.tenants.selector: %w", err))
	}
	if !slices.ContainsFunc(siblings, func(d v1alpha1.DeliveryStream) bool { return d.Spec.Tenants.Selector != nil }) {
		return nil, nil
	}
	list := &v1alpha1.CompassTenantList{}
	if err := s.kids.Client.List(ctx, list, client.MatchingFields{backend.IndexTenantServer: ServerOf(s.stream)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("list tenants: %w", err))
	}
	out := map[string]labels.Set{}
	for i := range list.Items {
		// Of two with one slug only one is served, and its status says so.
		if t := &list.Items[i]; t.Status.Slug != "" {
			out[t.Status.Slug] = t.Labels
		}
	}
	return out, nil
}

// move carries out a plan and returns whom running workers have not let go of yet.
func (r *Reconciler) move(ctx context.Context, s *scope, p *plan) (waits []string, err error) {
	held := map[writer]*store.LeaseSeen{}
	hand := func(t store.TenantRow, to string) (moved bool, err error) {
		free, err := r.letGo(ctx, s, t, held)
		if err != nil {
			return false, err
		}
		if !free {
			waits = append(waits, t.Slug)
			return false, nil
		}
		return r.Systems.Placements.PlaceTenant(ctx, s.at, t, to)
	}
	var errs []error // one that cannot be handed over, maybe because its own database is away, keeps no other waiting
	for _, t := range p.take {
		moved, err := hand(t, s.key.Name)
		if moved {
			p.mine++
		}
		errs = append(errs, err)
	}
	for _, t := range p.release {
		_, err := hand(t, "")
		errs = append(errs, err)
	}
	return waits, errors.Join(errs...)
}

// writer is who may write for the tenants of a stream that live in one database: its lease is there.
type writer struct {
	stream   string
	database int
}

// letGo reports whether a tenant may change hands: nobody has it, its worker has said that it sends nothing more for it,
// or that worker's lease is over. Else the worker is asked (MoveBound).
func (r *Reconciler) letGo(ctx context.Context, s *scope, t store.TenantRow, held map[writer]*store.LeaseSeen) (bool, error) {
	if t.Stream == "" {
		return true, nil
	}
	if !t.Draining {
		if err := r.Systems.Placements.DrainTenant(ctx, s.at, t.ID, t.Stream); err != nil {
			return false, err
		}
	}
	w := writer{t.Stream, t.Database}
	if held[w] == nil {
		lease, err := r.Systems.Leases.Lease(ctx, s.at, w.stream, w.database)
		if err != nil {
			return false, err
		}
		held[w] = &lease
	}
	lease := held[w]
	return !lease.Held || t.Claim > 0 && lease.Drained[t.ID] >= t.Claim, nil
}

// unplaced says whom the stream should carry and does not.
func unplaced(p plan, waits []string, claims claims, self *v1alpha1.DeliveryStream) error {
	if err := claims.mustBeFirst(self); err != nil {
		return err
	}
	if len(p.conflicts) > 0 {
		c := p.conflicts[0]
		return fault.Waiting(v1alpha1.ReasonTenantConflict,
			fmt.Sprintf("tenant %q is named by DeliveryStream %s too, which carries it: name or select it in one of them", c.slug, c.holder))
	}
	if len(p.missing) > 0 {
		return fault.Waiting(v1alpha1.ReasonWaitingForTenant,
			"no such tenant: "+list(p.missing)+": make a CompassTenant with that slug, or take it off spec.tenants.names")
	}
	if len(p.stay) > 0 {
		return fault.Waiting(v1alpha1.ReasonWaitingForDependency,
			"ConsumerReady is not True yet, so they stay with the stream that carries them: "+list(p.stay))
	}
	if len(waits) > 0 {
		return fault.Waiting(v1alpha1.ReasonWaitingForDrain, "the worker that carries them has yet to let go of: "+list(waits))
	}
	return nil
}

func list(names []string) string {
	if len(names) <= named {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:named], ", ") + " and others"
}

func (r *Reconciler) ensureStream(ctx context.Context, s *scope) error {
	if err := r.admit(ctx, s); err != nil {
		return err
	}
	_, err := r.Systems.Streams.EnsureStream(ctx, s.at, s.spec, s.stream.Spec.AdoptionPolicy)
	return err
}

func (r *Reconciler) ensureDeadLetters(ctx context.Context, s *scope) error {
	if err := r.admit(ctx, s); err != nil {
		return err
	}
	_, err := r.Systems.Streams.EnsureDeadLetters(ctx, s.at, s.spec, s.stream.Spec.AdoptionPolicy)
	return err
}

func (r *Reconciler) ensureConsumer(ctx context.Context, s *scope) error {
	seen, err := r.Systems.Streams.EnsureConsumer(ctx, s.at, s.spec, s.stream.Spec.AdoptionPolicy)
	if err != nil {
		return err
	}
	s.consumer = &seen
	return nil
}

// ensureWorker runs the one worker, with a NATS user of its own and without the right to make tenants.
func (r *Reconciler) ensureWorker(ctx context.Context, s *scope) error {
	if err := r.resolve(ctx, s); err != nil {
		return err
	}
	if err := r.mustHaveWork(ctx, s); err != nil {
		return err
	}
	if err := r.mustHaveQueue(ctx, s); err != nil {
		return err
	}
	server, err := naming.ServerChildrenOf(s.server.Name)
	if err != nil {
		return fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	text, err := s.workerConfig()
	if err != nil {
		return fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	databases, err := r.ensureSecret(ctx, s)
	if err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, s.kids, s.stream, s.workerConfigMap(text)); err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, s.kids, s.stream, s.workerAccount()); err != nil {
		return err
	}
	if _, err := kube.Apply(ctx, s.kids, s.stream, s.workerDoors()); err != nil {
		return err
	}
	worker := s.workerDeployment(r.Images, server.CommandKey, kube.Hash(string(text), string(databases)))
	worker.Annotations = map[string]string{naming.AnnotationDatabases: backend.Numbers(s.at.Databases)}
	if err := r.applyWorker(ctx, s, worker); err != nil {
		return err
	}
	return s.judgeWorker()
}

// mustHaveWork refuses a worker to who is not the first, and takes away the one from when it was.
func (r *Reconciler) mustHaveWork(ctx context.Context, s *scope) error {
	refused := s.mustBeFirst(ctx)
	if refused == nil || s.placed == nil || *s.placed > 0 {
		return refused
	}
	if err := r.removeWorker(ctx, s); err != nil {
		return err
	}
	return refused
}

// mustHaveQueue refuses a first worker to a stream that is not to be. One that runs goes on: its queue was there once, and what
// the stream asks for now is not its fault.
func (r *Reconciler) mustHaveQueue(ctx context.Context, s *scope) error {
	refused := r.admit(ctx, s)
	if refused == nil {
		return nil
	}
	switch err := s.kids.Client.Get(ctx, client.ObjectKey{Namespace: s.key.Namespace, Name: s.names.Worker}, &appsv1.Deployment{}); {
	case err == nil:
		return nil
	case !apierrors.IsNotFound(err):
		return fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("read the worker: %w", err))
	}
	return refused
}

// ensureSecret makes what the worker enters Postgres and NATS with. The NATS user stays who it is.
func (r *Reconciler) ensureSecret(ctx context.Context, s *scope) (databases []byte, err error) {
	secret := s.workerSecret()
	have, err := kube.Held(ctx, s.kids, secret)
	if err != nil {
		return nil, err
	}
	creds, err := s.at.Keys.Compass.KeepCreds(have[backend.KeyCreds], fabric.UserOf{Role: fabric.RoleWorker, ID: s.key.Name}, r.Now())
	if err != nil {
		return nil, err
	}
	if databases, err = s.workerDatabases(); err != nil {
		return nil, err
	}
	secret.Data = map[string][]byte{backend.KeyCreds: creds, backend.KeyDatabases: databases}
	maps.Copy(secret.Data, s.at.DatabaseCAs)
	if len(s.at.NATSCA) > 0 {
		secret.Data[keyNATSCA] = s.at.NATSCA
	}
	_, err = kube.Apply(ctx, s.kids, s.stream, secret)
	return databases, err
}

// judgeWorker judges what the Deployment says of the newest generation.
func (s *scope) judgeWorker() error {
	dep := s.deployment
	if dep.Status.ObservedGeneration < dep.Generation {
		return fault.Told(v1alpha1.ReasonWaitingForPods, "the worker is starting: "+s.describePods())
	}
	why, refused := kube.Stuck(dep)
	switch {
	case s.stream.Spec.Suspend && dep.Status.Replicas > 0:
		return fault.Told(v1alpha1.ReasonWaitingForPods, "the worker is stopping")
	case s.stream.Spec.Suspend || why == "" && dep.Status.AvailableReplicas > 0:
		return nil
	case refused:
		return fault.Waiting(v1alpha1.ReasonPodsFailed, "the worker's pod may not be made, by a quota or a policy of its namespace: raise that, or "+
			"change spec.worker.resources or spec.worker.pod: "+why)
	case why != "":
		return fault.Waiting(v1alpha1.ReasonPodsFailed, "the worker's pod does not start ("+why+"): correct the CompassServer's spec.image, or "+
			"spec.worker.resources or spec.worker.pod here, if they are the cause that this shows: "+s.describePods())
	}
	return fault.Told(v1alpha1.ReasonWaitingForPods, "the worker is starting: "+s.describePods())
}

// describePods is how a person looks at the worker's pod.
func (s *scope) describePods() string {
	return fmt.Sprintf("kubectl -n %s describe pods -l %s=%s,%s=%s",
		s.key.Namespace, naming.LabelComponent, naming.ComponentDelivery, naming.LabelStream, s.key.Name)
}

// judgeWriter tells who holds the lease, and what the figures are.
func (r *Reconciler) judgeWriter(ctx context.Context, s *scope) error {
	backlog, err := r.Systems.Leases.Backlog(ctx, s.at, s.key.Name)
	if err != nil {
		return err
	}
	s.backlog = &backlog
	lease, err := r.Systems.Leases.Lease(ctx, s.at, s.key.Name, 0)
	if err != nil {
		return err
	}
	s.lease, s.looked = &lease, r.Now().Truncate(time.Second)
	if r.contests.contested(s.key, r.Now()) {
		return fault.Waiting(v1alpha1.ReasonScaleContested, s.quarrel())
	}
	if !s.stream.Spec.Suspend && !lease.Held {
		return fault.Waiting(v1alpha1.ReasonWaitingForWriter, "the worker runs and has not taken the stream's lease yet: see its log if this lasts")
	}
	return nil
}
