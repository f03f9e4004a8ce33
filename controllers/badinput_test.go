package controllers_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// says checks a condition for a status, a reason, and what its message tells a person to do.
func (g *ground) says(t *testing.T, o named, kind string, want metav1.Condition, parts ...string) {
	t.Helper()
	got := g.condition(t, o, kind)
	if got.Status != want.Status || got.Reason != want.Reason {
		t.Errorf("%s %s: %s %s %q; want %s %s", o.name, kind, got.Status, got.Reason, got.Message, want.Status, want.Reason)
	}
	for _, part := range parts {
		if !strings.Contains(got.Message, part) {
			t.Errorf("%s %s: %q does not say %q", o.name, kind, got.Message, part)
		}
	}
	if strings.Contains(got.Message, "secret-word") {
		t.Errorf("%s %s repeats a secret: %q", o.name, kind, got.Message)
	}
}

func is(status metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Status: status, Reason: reason}
}

// Holds REQ-213, REQ-224: what is wrong with the admin's Secret, or with the Postgres behind it, is said with what to do;
// nothing is half made meanwhile; and it heals when the cause goes, without another edit.
func TestBadDatabase(t *testing.T) {
	t.Parallel()
	const database = v1alpha1.ConditionDatabaseReady
	cases := map[string]struct {
		data  map[string]string // of the Secret; nil: there is none
		parts map[string]string // in place of some of the right ones
		want  metav1.Condition
		says  []string
	}{
		"no Secret": {want: is("False", "WaitingForSecret"), says: []string{"Secret ", "/pg does not exist: create it"}},
		"no key": {
			parts: map[string]string{"password": ""}, want: is("False", "WaitingForSecret"),
			says: []string{`has no key "password": add it`},
		},
		"not a URL": {
			data: map[string]string{"uri": "postgres://user:secret-word"}, want: is("False", "InvalidSecret"),
			says: []string{"key uri is not postgres://"},
		},
		"a certificate that is a file": {
			data: map[string]string{"uri": "postgres://user:secret-word@h/x?sslrootcert=/etc/x"}, want: is("False", "InvalidSecret"),
			says: []string{"put the certificate under key ca.crt"},
		},
		"nobody there": {
			data: map[string]string{"uri": "postgres://user:secret-word@127.0.0.1:1/postgres?sslmode=disable"}, want: is("Unknown", "DatabaseUnreachable"),
			says: []string{"Postgres at 127.0.0.1:1 does not answer"},
		},
		"wrong password": {
			parts: map[string]string{"password": "secret-word"}, want: is("False", "DatabaseAuthFailed"),
			says: []string{"refuses", "correct username and password in Secret"},
		},
		"no such database": {
			parts: map[string]string{"database": "nowhere"}, want: is("False", "InvalidSecret"), says: []string{`has no database "nowhere"`},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGround(t)
			op := newOperator(t, g, &calls{})
			if c.parts != nil {
				c.data = g.adminParts(t)
				for key, value := range c.parts {
					c.data[key] = value
				}
			}
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "pg"}, StringData: c.data}
			if c.data != nil {
				g.create(t, secret)
			}
			server := g.newServer(t, "main", func(s *v1alpha1.CompassServer) { s.Spec.Database.AdminSecretRef.Name = "pg" })
			op.settle(t, server)
			g.says(t, server, database, c.want, c.says...)
			g.says(t, server, v1alpha1.ConditionSchemaReady, is("Unknown", "WaitingForDependency"))
			g.says(t, server, v1alpha1.ConditionFabricReady, is("False", "WaitingForDependency"), "once the database is: see condition DatabaseReady")
			g.madeNothing(t, "pg", "postgres-admin")
			// The cause goes.
			if c.data == nil {
				secret.StringData = g.adminParts(t)
				g.create(t, secret)
			} else {
				g.update(t, secret, "pg", func() {
					secret.Data, secret.StringData = nil, g.adminParts(t)
				})
			}
			op.settle(t, server)
			g.mustBeReady(t, server)
		})
	}
}

// madeNothing: no Secret but those named, and nothing that runs or keeps anything.
func (g *ground) madeNothing(t *testing.T, but ...string) {
	t.Helper()
	for _, list := range []client.ObjectList{
		&corev1.SecretList{}, &corev1.ServiceList{}, &appsv1.StatefulSetList{}, &appsv1.DeploymentList{}, &corev1.PersistentVolumeClaimList{},
	} {
		if err := g.api.List(t.Context(), list, client.InNamespace(g.namespace)); err != nil {
			t.Fatal(err)
		}
		_ = meta.EachListItem(list, func(item runtime.Object) error {
			if o, ok := item.(client.Object); ok && !slices.Contains(but, o.GetName()) {
				t.Errorf("half made: %T %s", o, o.GetName())
			}
			return nil
		})
	}
}

// An installation that has begun does not need Postgres to look after its NATS.
func TestDatabaseGoesAway(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	secret := &corev1.Secret{}
	th.update(t, secret, "postgres-admin", func() { secret.Data = map[string][]byte{"uri": []byte("postgres://u:p@127.0.0.1:1/x?sslmode=disable")} })
	th.delete(t, &appsv1.StatefulSet{}, "main-nats")
	th.settle(t, th.server)
	th.says(t, th.server, v1alpha1.ConditionDatabaseReady, is("Unknown", "DatabaseUnreachable"))
	th.says(t, th.server, v1alpha1.ConditionFabricReady, is("True", "Applied"))
	if !th.get(t, &appsv1.StatefulSet{}, "main-nats") {
		t.Error("NATS was left removed")
	}
}

// Holds REQ-211: of two servers on one database the first keeps it, and the other changes nothing of it.
func TestTwoServersOneDatabase(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	first := g.newServer(t, "first")
	op.settle(t, first)
	g.mustBeReady(t, first)
	s := &v1alpha1.CompassServer{}
	g.get(t, s, "first")
	second := g.newServer(t, "second", func(o *v1alpha1.CompassServer) { o.Spec.Database.Name = s.Spec.Database.Name })
	op.settle(t, first, second)
	g.says(t, second, v1alpha1.ConditionDatabaseReady, is("False", "DatabaseConflict"), "kept by CompassServer "+g.namespace+"/first", "comment on database")
	g.mustBeReady(t, first)
	// The survivor's logins work still.
	_ = g.open(t, "first-databases")
	// A deletion of the loser takes nothing from the survivor.
	g.update(t, s, "second", func() { s.Spec.DeletionPolicy = v1alpha1.DeletionPolicyDelete })
	op.settle(t, second)
	g.delete(t, &v1alpha1.CompassServer{}, "second")
	op.settle(t, second, first)
	if g.get(t, &v1alpha1.CompassServer{}, "second") {
		t.Error("the loser's deletion sticks")
	}
	g.mustBeReady(t, first)
	_ = g.open(t, "first-databases")
}

// Holds REQ-211: a child's name that is taken by somebody else's object is said, and that object is not touched.
func TestForeignObjects(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	foreign := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "main-admin"}, Data: map[string][]byte{"token": []byte("mine")},
	}
	g.create(t, foreign)
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "main-nats"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}},
	}
	g.create(t, service)
	server := g.newServer(t, "main")
	op.settle(t, server)
	g.says(t, server, v1alpha1.ConditionServerAvailable, is("False", "SecretConflict"), "main-admin", "it exists and is not ours")
	g.says(t, server, v1alpha1.ConditionFabricReady, is("False", "ObjectConflict"), "Service", "main-nats")
	if data := g.secret(t, "main-admin"); string(data["token"]) != "mine" || len(data) != 1 {
		t.Errorf("the Secret of somebody else became %v", data)
	}
	g.delete(t, foreign, "main-admin")
	g.delete(t, service, "main-nats")
	op.settle(t, server)
	g.mustBeReady(t, server)
}

// Holds REQ-206, REQ-211: a tenant that cannot be is told why; of two with one slug the older has it, until it goes.
func TestBadTenant(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	const accepted = v1alpha1.ConditionServerAccepted
	early := g.newTenant(t, "early", "main")
	op.settle(t, early)
	g.says(t, early, accepted, is("False", "WaitingForServer"), "CompassServer "+g.namespace+"/main does not exist")
	server := g.newServer(t, "main")
	op.settle(t, server, early)
	if c := g.condition(t, early, v1alpha1.ConditionDatabaseReady); c.Status != metav1.ConditionTrue {
		t.Errorf("after its server came: %v", c)
	}
	g.says(t, early, v1alpha1.ConditionDelivering, is("False", "NoStream"), "stay owed")

	stranger := g.newTenant(t, "stranger", "main", func(o *v1alpha1.CompassTenant) { o.Spec.ServerRef.Namespace = "elsewhere" })
	twin := g.newTenant(t, "twin", "main", func(o *v1alpha1.CompassTenant) { o.Spec.Slug = "early" })
	op.settle(t, stranger, twin)
	g.says(t, stranger, accepted, is("False", "WaitingForServer"), "CompassServer elsewhere/main does not exist")
	g.says(t, twin, accepted, is("False", "SlugConflict"), "CompassTenant "+g.namespace+"/early, which is older", "another spec.slug")
	if g.secret(t, "twin-api") != nil || g.secret(t, "twin-keys") != nil {
		t.Error("the loser of a slug has credentials")
	}
	before := &v1alpha1.CompassTenant{}
	g.get(t, before, "early")
	g.delete(t, &v1alpha1.CompassTenant{}, "early")
	op.settle(t, early, twin)
	after := &v1alpha1.CompassTenant{}
	g.get(t, after, "twin")
	if after.Status.TenantID != before.Status.TenantID || after.Status.TenantID == "" {
		t.Errorf("the next in line has tenant %q, want the kept %q", after.Status.TenantID, before.Status.TenantID)
	}
}

// Holds REQ-208, REQ-237: a stream carries whom it should and nobody else, says whom it cannot carry and why, and places the
// others meanwhile.
func TestBadStream(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	const placed = v1alpha1.ConditionTenantsPlaced
	server := g.newServer(t, "main")
	a, b := g.newTenant(t, "a", "main"), g.newTenant(t, "b", "main")
	names := func(slugs ...string) func(*v1alpha1.DeliveryStream) {
		return func(o *v1alpha1.DeliveryStream) { o.Spec.Tenants = v1alpha1.TenantSelection{Names: slugs} }
	}
	one := g.newStream(t, "one", "main", names("a", "ghost", "spectre"))
	op.settle(t, server, a, b, one)
	g.says(t, one, placed, is("False", "WaitingForTenant"), "no such tenant: ghost, spectre")
	carrier := func(o named) string {
		t.Helper()
		tenant := &v1alpha1.CompassTenant{}
		g.get(t, tenant, o.name)
		return tenant.Status.Stream
	}
	op.settle(t, a)
	if carrier(a) != "one" || carrier(b) != "" {
		t.Errorf("a is carried by %q, b by %q; want one and nobody", carrier(a), carrier(b))
	}

	two := g.newStream(t, "two", "main", names("a"))
	op.settle(t, one, two, a)
	g.says(t, two, placed, is("False", "TenantConflict"), `tenant "a" is named by DeliveryStream one too, which carries it`)

	rest := g.newStream(t, "rest", "main")
	late := g.newStream(t, "zlate", "main")
	ghost := g.newTenant(t, "ghost", "main")
	spectre := g.newTenant(t, "spectre", "main")
	op.settle(t, a, b, ghost, spectre, one, rest, late)
	op.settle(t, a, b, ghost, spectre)
	g.says(t, one, placed, is("True", "Applied"))
	g.says(t, rest, placed, is("True", "Applied"))
	g.says(t, late, placed, is("False", "TenantConflict"), "DeliveryStream rest carries all tenants already")
	huge := g.newStream(t, "huge", "main", func(o *v1alpha1.DeliveryStream) { o.Spec.Stream.MaxBytes = resource.MustParse("1Pi") }, names("b"))
	op.settle(t, huge)
	g.says(t, huge, v1alpha1.ConditionStreamReady, is("False", "InvalidSpec"), "lower them")
	for _, refused := range []string{"zlate", "huge"} {
		if g.get(t, &appsv1.Deployment{}, refused+"-compass-delivery") {
			t.Errorf("a worker runs for %s, which is not to be", refused)
		}
	}
	if carrier(a) != "one" || carrier(ghost) != "one" || carrier(b) != "rest" {
		t.Errorf("a %q, ghost %q, b %q; want one, one and rest", carrier(a), carrier(ghost), carrier(b))
	}
}

// Holds REQ-237: a tenant leaves a running worker only when that has let go of it.
func TestTenantMoves(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	server, a := g.newServer(t, "main"), g.newTenant(t, "a", "main")
	rest := g.newStream(t, "rest", "main")
	op.settle(t, server, a, rest)
	g.mustBeReady(t, server, rest)
	op.settle(t, a)
	g.mustBeReady(t, a)

	own := g.newStream(t, "own", "main", func(o *v1alpha1.DeliveryStream) { o.Spec.Tenants = v1alpha1.TenantSelection{Names: []string{"a"}} })
	op.settle(t, own, a)
	g.says(t, own, v1alpha1.ConditionTenantsPlaced, is("False", "WaitingForDrain"), "a")
	s := g.open(t, "main-databases")
	row, err := s.TenantBySlug(t.Context(), "a")
	if err != nil || row.Stream != "rest" || !row.Draining {
		t.Fatalf("%+v, %v; want still with rest, and draining", row, err)
	}
	g.confirmDrain(t, "main", "rest", string(row.ID), row.Claim)
	op.settle(t, own, a, rest)
	g.mustBeReady(t, own, a)
	after, err := s.TenantBySlug(t.Context(), "a")
	if err != nil || after.Stream != "own" || after.Draining || after.Claim <= row.Claim {
		t.Errorf("%+v, %v; want with own, under a higher claim", after, err)
	}
}

// A stream that cannot be made takes nobody from one that works: its tenants' references would go nowhere.
func TestTenantStaysUntilTheQueueIsThere(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	server, a := g.newServer(t, "main"), g.newTenant(t, "a", "main")
	rest := g.newStream(t, "rest", "main")
	op.settle(t, server, a, rest)
	g.mustBeReady(t, server, rest)

	huge := g.newStream(t, "huge", "main", func(o *v1alpha1.DeliveryStream) {
		o.Spec.Tenants = v1alpha1.TenantSelection{Names: []string{"a"}}
		o.Spec.Stream.MaxBytes = resource.MustParse("900Gi")
	})
	op.settle(t, huge, a)
	g.says(t, huge, v1alpha1.ConditionTenantsPlaced, is("False", "WaitingForDependency"), "a", "ConsumerReady")
	row, err := g.open(t, "main-databases").TenantBySlug(t.Context(), "a")
	if err != nil || row.Stream != "rest" || row.Draining {
		t.Errorf("%+v, %v; want with rest, and not draining", row, err)
	}
}

// Holds REQ-208, REQ-237: a tenant moves between streams by one edit, of its own label.
func TestTenantMovesByLabel(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	tier := func(value string) func(*v1alpha1.DeliveryStream) {
		return func(o *v1alpha1.DeliveryStream) {
			o.Spec.Tenants = v1alpha1.TenantSelection{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": value}}}
		}
	}
	server := g.newServer(t, "main")
	a := g.newTenant(t, "a", "main", func(o *v1alpha1.CompassTenant) { o.Labels = map[string]string{"tier": "gold"} })
	b := g.newTenant(t, "b", "main")
	gold, tin := g.newStream(t, "gold", "main", tier("gold")), g.newStream(t, "tin", "main", tier("tin"))
	all := []named{server, a, b, gold, tin}
	op.settle(t, all...)
	op.settle(t, all...)
	g.mustBeReady(t, server, gold, tin, a)
	g.says(t, b, v1alpha1.ConditionDelivering, is("False", "NoStream"))

	o := &v1alpha1.CompassTenant{}
	g.update(t, o, "a", func() { o.Labels["tier"] = "tin" })
	op.settle(t, all...)
	g.says(t, tin, v1alpha1.ConditionTenantsPlaced, is("False", "WaitingForDrain"), "a")
	s := g.open(t, "main-databases")
	row, err := s.TenantBySlug(t.Context(), "a")
	if err != nil || row.Stream != "gold" || !row.Draining {
		t.Fatalf("%+v, %v; want still with gold, and draining", row, err)
	}
	g.confirmDrain(t, "main", "gold", string(row.ID), row.Claim)
	op.settle(t, all...)
	g.mustBeReady(t, gold, tin, a)
	after, err := s.TenantBySlug(t.Context(), "a")
	if err != nil || after.Stream != "tin" || after.Draining || after.Claim <= row.Claim {
		t.Errorf("%+v, %v; want with tin, under a higher claim", after, err)
	}
}
