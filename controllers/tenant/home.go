package tenant

import (
	"context"
	"fmt"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
)

// A tenant with isolation Dedicated has a database of its own, made here, and a Secret beside its server's through which
// everybody who serves the tenant learns of it. The order of a move: the database is whole → every pod knows it → a mark is
// set → the tenant moves → what the move leaves is cleaned up → the mark goes. Whoever finds the mark goes on with the move.

// Keys of that Secret beside its passwords and those that the server reads.
const (
	keyHomeAdmin    = "admin.secret"   // who opens its Postgres: namespace/name
	keyHomeDatabase = "admin.database" // its name
	keyMoving       = "moving"         // a move in or out has begun, and nobody knows that it has ended
)

// home is the tenant's own database: as its Secret tells, and who opens it.
type home struct {
	backend.Home
	kept map[string][]byte
}

func (s *scope) dedicated() bool { return s.tenant.Spec.Isolation.Mode == v1alpha1.IsolationDedicated }

// wanted is the number of the database that the tenant shall live in.
func (s *scope) wanted() int {
	if s.dedicated() {
		return naming.DatabaseNumber(s.slug)
	}
	return naming.DatabaseZero
}

// homeSecret is owned by nobody: what leads to a tenant's rows outlives whoever refers to it.
func (s *scope) homeSecret() *corev1.Secret {
	server := Server(s.tenant)
	labels := kube.Labels(naming.LabelServer, server.Name, naming.ComponentDatabase)
	labels[naming.LabelSlug] = s.slug
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: server.Namespace, Name: naming.DatabaseSecret(server.Name, naming.DatabaseNumber(s.slug)), Labels: labels,
	}}
}

// homeOwner marks the database as this tenant's, so that no two get one, and none gets its server's.
func (s *scope) homeOwner() string { return backend.Owner(Server(s.tenant)) + " for tenant " + s.slug }

// zero is the database that the tenants of the server share.
func (s *scope) zero(ctx context.Context) (backend.Home, error) {
	by, err := backend.ReadAdmin(ctx, s.kids, client.ObjectKey{Namespace: s.server.Namespace, Name: s.server.Spec.Database.AdminSecretRef.Name})
	return backend.Home{Number: naming.DatabaseZero, Database: s.server.Spec.Database.Name, By: by}, err
}

// findHome reads what was kept of a database of the tenant's own; nil where there is none.
func (s *scope) findHome(ctx context.Context) (*home, error) {
	secret := s.homeSecret()
	data, err := kube.Find(ctx, s.kids, secret)
	if err != nil || len(data[keyHomeAdmin]) == 0 {
		return nil, err
	}
	namespace, name, _ := strings.Cut(string(data[keyHomeAdmin]), "/")
	by, err := backend.ReadAdmin(ctx, s.kids, client.ObjectKey{Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return &home{backend.Home{Number: naming.DatabaseNumber(s.slug), Database: string(data[keyHomeDatabase]), By: by}, data}, nil
}

// lives is where the tenant's rows are now.
func (s *scope) lives(ctx context.Context) (backend.Home, error) {
	if s.row.Database == naming.DatabaseZero {
		return s.zero(ctx)
	}
	h, err := s.findHome(ctx)
	if err == nil && h == nil {
		err = s.homeLost()
	}
	if err != nil {
		return backend.Home{}, err
	}
	return h.Home, nil
}

func (s *scope) homeLost() error {
	secret := s.homeSecret()
	return fault.Waiting(v1alpha1.ReasonWaitingForSecret, fmt.Sprintf("the tenant lives in a database of its own, and Secret %s/%s, which "+
		"leads there, is gone: restore it, or set spec.isolation to that database", secret.Namespace, secret.Name))
}

// ensureHome makes the database, with roles and schema, and publishes the way in; once per pass. A database that the tenant
// lives in is never made anew: an empty one in its place would look like a tenant that has lost everything.
func (r *Reconciler) ensureHome(ctx context.Context, s *scope) error {
	if s.home != nil {
		return nil
	}
	spec := s.tenant.Spec.Isolation.Dedicated
	ref := client.ObjectKey{Namespace: s.key.Namespace, Name: spec.AdminSecretRef.Name}
	by, err := backend.ReadAdmin(ctx, s.kids, ref)
	if err != nil {
		return err
	}
	number := naming.DatabaseNumber(s.slug)
	secret := s.homeSecret()
	kept, err := kube.Keep(ctx, s.kids, nil, secret, func(have map[string][]byte) (map[string][]byte, error) {
		return backend.MissingPasswords(have, r.Rand)
	})
	if err != nil {
		return err
	}
	want := admin.Spec{Database: spec.Database, Passwords: backend.Passwords(kept), MustExist: s.row != nil && s.row.Database == number}
	if _, err := r.Systems.Homes.EnsureDatabase(ctx, by, s.homeOwner(), want); err != nil {
		return err
	}
	if _, err := r.Systems.Homes.Migrate(ctx, by, spec.Database); err != nil {
		return err
	}
	logins, err := by.Logins(number, spec.Database, want.Passwords, nil)
	if err != nil {
		return err
	}
	rendered, err := backend.RenderDatabases([]config.Database{logins})
	if err != nil {
		return err
	}
	secret.Data = backend.PasswordKeys(kept)
	maps.Copy(secret.Data, map[string][]byte{
		backend.KeyDatabases: rendered, keyHomeAdmin: []byte(ref.String()), keyHomeDatabase: []byte(spec.Database),
	})
	if ca := by.CA(); len(ca) > 0 {
		secret.Data[backend.KeyCA] = ca
	}
	if _, err = kube.Apply(ctx, s.kids, nil, secret); err != nil {
		return err
	}
	s.home = &home{backend.Home{Number: number, Database: spec.Database, By: by}, kept}
	return nil
}

// settleHome brings the tenant to where it shall live.
func (r *Reconciler) settleHome(ctx context.Context, s *scope) error {
	if !s.dedicated() {
		return r.comeBack(ctx, s)
	}
	if err := r.ensureHome(ctx, s); err != nil || s.settled(s.home.Home, s.home.kept) {
		return err
	}
	zero, err := s.zero(ctx)
	if err != nil {
		return err
	}
	return r.bring(ctx, s, zero, s.home.Home, s.home.kept)
}

// comeBack brings the tenant to the database of its server, and gives up its own.
func (r *Reconciler) comeBack(ctx context.Context, s *scope) error {
	own, err := s.findHome(ctx)
	switch {
	case err != nil:
		return err
	case own == nil && s.row.Database == naming.DatabaseZero:
		return nil
	case own == nil:
		return s.homeLost()
	}
	zero, err := s.zero(ctx)
	if err != nil {
		return err
	}
	if !s.settled(zero, own.kept) {
		if err := r.bring(ctx, s, own.Home, zero, own.kept); err != nil {
			return err
		}
	}
	return r.leaveHome(ctx, s, own)
}

// settled: the tenant lives there, and nothing of a move is left to do.
func (s *scope) settled(at backend.Home, kept map[string][]byte) bool {
	return s.row.Database == at.Number && len(kept[keyMoving]) == 0
}

// bring moves the tenant, or goes on with a move.
func (r *Reconciler) bring(ctx context.Context, s *scope, from, to backend.Home, kept map[string][]byte) error {
	if err := r.mustBeKnown(ctx, s, to.Number); err != nil {
		return err
	}
	if len(kept[keyMoving]) == 0 {
		if _, err := kube.Change(ctx, s.kids, s.homeSecret(), map[string][]byte{keyMoving: []byte("true")}); err != nil {
			return err
		}
	}
	done, err := r.Systems.Homes.MoveTenant(ctx, s.at, s.row.ID, from, to)
	if err != nil {
		return err
	}
	if !done {
		return fault.Waiting(v1alpha1.ReasonWaitingForMove, fmt.Sprintf("the tenant moves to database %s at %s: until it is there, what it "+
			"writes is refused with a word to try again", to.Database, to.By))
	}
	if err := r.Systems.Logins.RemoveLogin(ctx, s.at, from.By, from.Database, s.row.ID); err != nil {
		return err
	}
	s.row.Database = to.Number
	if s.token != nil {
		if err := r.ensureSQL(ctx, s); err != nil {
			return err
		}
	}
	_, err = kube.Change(ctx, s.kids, s.homeSecret(), map[string][]byte{keyMoving: nil})
	return err
}

// mustBeKnown: whoever serves the tenant must know the database before the tenant lives there, or refuse it until it does.
func (r *Reconciler) mustBeKnown(ctx context.Context, s *scope, number int) error {
	if number == naming.DatabaseZero {
		return nil
	}
	if !s.at.Knows(number) {
		return s.notTakenIn()
	}
	names, err := naming.ServerChildrenOf(s.server.Name)
	if err != nil {
		return fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
	}
	workloads := []string{names.Server}
	if s.row.Stream != "" {
		children, err := naming.StreamChildrenOf(s.row.Stream)
		if err != nil {
			return fault.Terminal(v1alpha1.ReasonInvalidSpec, err)
		}
		workloads = append(workloads, children.Worker)
	}
	for _, name := range workloads {
		dep := &appsv1.Deployment{}
		err := s.kids.Client.Get(ctx, client.ObjectKey{Namespace: s.server.Namespace, Name: name}, dep)
		if client.IgnoreNotFound(err) != nil {
			return fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("read Deployment %s: %w", name, err))
		}
		if err == nil && (!backend.Knows(dep.Annotations[naming.AnnotationDatabases], number) || !kube.RolledOut(dep)) {
			return fault.Waiting(v1alpha1.ReasonWaitingForRollout, fmt.Sprintf("the pods of Deployment %s/%s have yet to take in the tenant's database",
				dep.Namespace, dep.Name))
		}
	}
	return nil
}

func (s *scope) notTakenIn() error {
	return fault.Waiting(v1alpha1.ReasonWaitingForRollout, fmt.Sprintf("CompassServer %s/%s has yet to take in the tenant's database",
		s.server.Namespace, s.server.Name))
}

// leaveHome gives up a database that the tenant lives in no more: under Delete it is dropped, else it is left, empty.
func (r *Reconciler) leaveHome(ctx context.Context, s *scope, own *home) error {
	if s.tenant.Policy() == v1alpha1.DeletionPolicyDelete {
		if err := r.Systems.Homes.RemoveDatabase(ctx, own.By, s.homeOwner(), own.Database); err != nil {
			return err
		}
	}
	if err := kube.Remove(ctx, s.kids, nil, s.homeSecret()); err != nil && !fault.IsWaiting(err) {
		return err
	}
	return nil
}

// mustAdopt: a tenant that was there before this object is taken over where it lives, and moved only if that is asked for: an
// object without spec.isolation must not bring out what somebody had put apart.
func (s *scope) mustAdopt() error {
	if s.tenant.Status.TenantID != "" || s.row.Database == s.wanted() || s.tenant.Spec.AdoptionPolicy == v1alpha1.AdoptionForce {
		return nil
	}
	return fault.Waiting(v1alpha1.ReasonDatabaseConflict, fmt.Sprintf("tenant %q was there before this object and lives in another database than "+
		"spec.isolation asks for: set that to where it lives, or set spec.adoptionPolicy to Force, and it is moved", s.slug))
}
