package controllers_test

import (
	"fmt"
	"os"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// inOwn is a tenant with a database of its own.
func inOwn(database string) v1alpha1.IsolationSpec {
	return v1alpha1.IsolationSpec{
		Mode: v1alpha1.IsolationDedicated, Dedicated: &v1alpha1.DedicatedSpec{AdminSecretRef: v1alpha1.LocalReference{Name: "acme-pg"}, Database: database},
	}
}

// settleMove looks at everything until a tenant is Ready: a move goes on between the looks.
func (th thread) settleMove(t *testing.T, o named) {
	t.Helper()
	obj := &v1alpha1.CompassTenant{}
	defer func() {
		if t.Failed() {
			t.Logf("%s: %+v", o.name, obj.Status.Conditions)
		}
	}()
	eventually(t, o.name+" is Ready where it shall live", func() bool {
		th.settle(t, th.server, th.stream, o)
		th.get(t, obj, o.name)
		ready := meta.FindStatusCondition(obj.Status.Conditions, v1alpha1.ConditionReady)
		return ready != nil && ready.Status == metav1.ConditionTrue && obj.Status.ObservedGeneration == obj.Generation
	})
}

// livesIn is what the routing truth says of a tenant.
func (th thread) livesIn(t *testing.T, slug string) int {
	t.Helper()
	row, err := th.open(t, "main-databases").TenantBySlug(t.Context(), slug)
	if err != nil {
		t.Fatal(err)
	}
	return row.Database
}

// rowsIn counts the accounts of a tenant in a database, as a superuser does.
func (th thread) rowsIn(t *testing.T, database, tenant string) (n int) {
	t.Helper()
	dsn, err := storetest.WithDatabase(th.postgres.SuperDSN, database)
	if err != nil {
		t.Fatal(err)
	}
	conn := storetest.Connect(t, dsn)
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), "select count(*) from compass.accounts where tenant_id = $1", tenant).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Holds REQ-207, REQ-237: one edit moves a tenant into a database of its own and another one back, with everything that it
// has; its token opens all the time, its SQL login follows, and nothing of it is left behind.
func TestDedicated(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	th.adminSecret(t, "acme-pg")
	own, number := th.ground.database(t), naming.DatabaseNumber("acme")
	acme := &v1alpha1.CompassTenant{}
	th.update(t, acme, "acme", func() { acme.Spec.SQLAccess = v1alpha1.SQLAccess{Enabled: true, Connections: 2} })
	th.settle(t, th.tenant)
	th.mustBeReady(t, th.tenant)
	id, token := acme.Status.TenantID, string(th.secret(t, "acme-api")["token"])
	before := th.secret(t, "acme-sql")

	th.update(t, acme, "acme", func() { acme.Spec.Isolation = inOwn(own) })
	_, _ = th.once(t, acme, "acme")
	th.says(t, th.tenant, v1alpha1.ConditionDatabaseReady, is("False", "WaitingForRollout"), "CompassServer "+th.namespace+"/main has yet to take in")
	for _, works := range []string{v1alpha1.ConditionAccountReady, v1alpha1.ConditionCredentialsReady, v1alpha1.ConditionDelivering} {
		if c := th.condition(t, th.tenant, works); c.Status != metav1.ConditionTrue {
			t.Errorf("while its database is made: %v", c)
		}
	}
	// Pods that do not come up keep it where it is.
	th.halted["main-server"] = true
	th.settle(t, th.server, th.tenant)
	th.says(t, th.tenant, v1alpha1.ConditionDatabaseReady, is("False", "WaitingForRollout"), "Deployment "+th.namespace+"/main-server")
	if at := th.livesIn(t, "acme"); at != 0 {
		t.Fatalf("it lives in %d, which its Servers do not know", at)
	}
	th.halted["main-server"] = false
	th.settleMove(t, th.tenant)

	if at, there, here := th.livesIn(t, "acme"), th.rowsIn(t, own, id), th.rowsIn(t, th.database, id); at != number || there != 1 || here != 0 {
		t.Errorf("it lives in %d with %d accounts there and %d left; want %d, 1 and 0", at, there, here, number)
	}
	th.says(t, th.tenant, v1alpha1.ConditionDatabaseReady, is("True", "Applied"), "in database "+own+" of its own")
	if !opens(t, th.open(t, "main-databases"), token) {
		t.Error("its token does not open")
	}
	if after := th.secret(t, "acme-sql"); string(after["database"]) != own || !storetest.Opens(t, string(after["uri"])) || storetest.Opens(t, string(before["uri"])) {
		t.Errorf("SQL: database %s, opens %v, before %v", after["database"], storetest.Opens(t, string(after["uri"])), storetest.Opens(t, string(before["uri"])))
	}
	for _, name := range []string{"main-server", "main-compass-delivery"} {
		dep := &appsv1.Deployment{}
		if th.get(t, dep, name); !backend.Knows(dep.Annotations[naming.AnnotationDatabases], number) {
			t.Errorf("%s does not know the database", name)
		}
	}
	th.calls.writes = nil
	for range 2 {
		for _, o := range []named{th.server, th.tenant, th.stream} {
			if _, err := th.once(t, o.kind(), o.name); err != nil {
				t.Error(err)
			}
		}
	}
	if len(th.calls.writes) > 0 {
		t.Errorf("idle passes wrote %v", th.calls.writes)
	}

	th.update(t, acme, "acme", func() { acme.Spec.Isolation = v1alpha1.IsolationSpec{} })
	th.settleMove(t, th.tenant)
	th.settleMove(t, th.tenant)
	if at, there, here := th.livesIn(t, "acme"), th.rowsIn(t, own, id), th.rowsIn(t, th.database, id); at != 0 || there != 0 || here != 1 {
		t.Errorf("back in %d with %d accounts left there and %d here; want 0, 0 and 1", at, there, here)
	}
	if !opens(t, th.open(t, "main-databases"), token) {
		t.Error("its token does not open when it is back")
	}
	if sql := th.secret(t, "acme-sql"); string(sql["database"]) != th.database || !storetest.Opens(t, string(sql["uri"])) {
		t.Errorf("SQL: database %s", sql["database"])
	}
	if th.secret(t, naming.DatabaseSecret("main", number)) != nil {
		t.Error("the way into the database that it left is still published")
	}
}

// Holds REQ-207, REQ-211: a tenant may be born in a database of its own. It outlives its object there, and an object that says
// nothing of it does not bring it out unless that is asked for.
func TestDedicatedFromBirth(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	th.adminSecret(t, "acme-pg")
	own := th.ground.database(t)
	vault := th.newTenant(t, "vault", "main", func(o *v1alpha1.CompassTenant) { o.Spec.Isolation = inOwn(own) })
	th.settleMove(t, vault)
	o := &v1alpha1.CompassTenant{}
	th.get(t, o, "vault")
	id := o.Status.TenantID
	if there, here := th.rowsIn(t, own, id), th.rowsIn(t, th.database, id); there != 1 || here != 0 {
		t.Errorf("%d accounts in its own database, %d in the shared one", there, here)
	}
	th.removeObject(t, vault)
	vault = th.newTenant(t, "keeper", "main", func(o *v1alpha1.CompassTenant) { o.Spec.Slug = "vault" }) // no garbage is collected here
	th.settle(t, vault)
	th.says(t, vault, v1alpha1.ConditionDatabaseReady, is("False", "DatabaseConflict"), "lives in another database", "spec.adoptionPolicy to Force")
	if at := th.livesIn(t, "vault"); at == 0 {
		t.Fatal("it was brought out")
	}
	th.update(t, o, "keeper", func() { o.Spec.AdoptionPolicy = v1alpha1.AdoptionForce })
	th.settleMove(t, vault)
	if at, here := th.livesIn(t, "vault"), th.rowsIn(t, th.database, id); at != 0 || here != 1 {
		t.Errorf("it lives in %d, with %d accounts in 0", at, here)
	}
	// Under Delete a database goes with its tenant.
	th.update(t, o, "keeper", func() { o.Spec.Isolation, o.Spec.DeletionPolicy = inOwn(own), v1alpha1.DeletionPolicyDelete })
	th.settleMove(t, vault)
	th.removeObject(t, vault)
	if !th.isGone(t, vault) {
		t.Fatalf("held: %v", th.condition(t, vault, v1alpha1.ConditionReady))
	}
	if seen := (thread{operator: th.operator, database: own}).observe(t); seen.Exists || len(seen.Roles) > 0 {
		t.Errorf("left of its database: %+v", seen)
	}
	th.settle(t, th.server, th.stream, th.tenant)
	th.mustBeReady(t, th.server, th.stream, th.tenant)
}

// Holds REQ-207, REQ-213, REQ-239: what is wrong with a tenant's own database is said, keeps that tenant where it is, and is
// nobody else's concern.
func TestBadDedicated(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	const database = v1alpha1.ConditionDatabaseReady
	acme := &v1alpha1.CompassTenant{}
	own := th.ground.database(t)
	th.update(t, acme, "acme", func() { acme.Spec.Isolation = inOwn(th.database) })
	th.settle(t, th.tenant)
	th.says(t, th.tenant, database, is("False", "WaitingForSecret"), "Secret "+th.namespace+"/acme-pg does not exist: create it")
	th.adminSecret(t, "acme-pg")
	th.settle(t, th.tenant)
	th.says(t, th.tenant, database, is("False", "DatabaseConflict"), "kept by CompassServer "+th.namespace+"/main")
	for _, works := range []string{v1alpha1.ConditionAccountReady, v1alpha1.ConditionCredentialsReady, v1alpha1.ConditionDelivering} {
		if c := th.condition(t, th.tenant, works); c.Status != metav1.ConditionTrue {
			t.Errorf("where it lives: %v", c)
		}
	}
	th.update(t, acme, "acme", func() { acme.Spec.Isolation = v1alpha1.IsolationSpec{} })
	th.settle(t, th.tenant)
	th.mustBeReady(t, th.tenant)
	th.update(t, acme, "acme", func() { acme.Spec.Isolation = inOwn(own) })
	th.settleMove(t, th.tenant)
	other := th.newTenant(t, "other", "main", func(o *v1alpha1.CompassTenant) { o.Spec.Isolation = inOwn(own) })
	th.settle(t, other)
	th.says(t, other, database, is("False", "DatabaseConflict"), "kept by CompassServer "+th.namespace+"/main for tenant acme")

	// Its Postgres goes away: it waits, and nobody else does.
	secret := th.secret(t, "acme-pg")
	shut := func(allow bool) {
		t.Helper()
		super := storetest.Connect(t, th.superDSN(t))
		defer super.Close(t.Context())
		for _, sql := range []string{
			fmt.Sprintf("alter database %q with allow_connections %v", own, allow),
			fmt.Sprintf("select pg_terminate_backend(pid) from pg_stat_activity where datname = '%s'", own),
		} {
			if _, err := super.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	shut(false)
	th.pool.Forget(th.place(t).Server) // as a new process of the operator would find it
	bystander := th.newTenant(t, "bystander", "main")
	th.settle(t, th.server, th.stream, bystander, th.tenant)
	th.settle(t, bystander)
	th.mustBeReady(t, th.server, th.stream, bystander)
	if c := th.condition(t, th.tenant, v1alpha1.ConditionCredentialsReady); c.Status == metav1.ConditionTrue {
		t.Errorf("without its database: %v", c)
	}
	shut(true)
	th.settleMove(t, th.tenant)
	if at := th.livesIn(t, "acme"); at != naming.DatabaseNumber("acme") || string(secret["uri"]) == "" {
		t.Errorf("it lives in %d", at)
	}
}

// Holds REQ-207, REQ-212, REQ-223: wherever a move is interrupted, in either direction, it ends with the tenant whole where it
// shall live, and with nothing of it elsewhere.
func TestInterruptedMove(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	th.adminSecret(t, "acme-pg")
	acme := &v1alpha1.CompassTenant{}
	th.get(t, acme, "acme")
	id, token, own := acme.Status.TenantID, string(th.secret(t, "acme-api")["token"]), th.ground.database(t)
	move := func(to v1alpha1.IsolationSpec, failAt int) int {
		t.Helper()
		th.update(t, acme, "acme", func() { acme.Spec.Isolation = to })
		th.calls.from(failAt)
		th.settleMove(t, th.tenant)
		th.calls.failAt = 0
		n := th.calls.n
		th.settleMove(t, th.tenant)
		at, there, here, want := th.livesIn(t, "acme"), th.rowsIn(t, own, id), th.rowsIn(t, th.database, id), [3]int{0, 0, 1}
		if to.Dedicated != nil {
			want = [3]int{naming.DatabaseNumber("acme"), 1, 0}
		}
		if got := [3]int{at, there, here}; got != want || !opens(t, th.open(t, "main-databases"), token) {
			t.Errorf("interrupted at %d: lives in, accounts there and here: %v, want %v; opens: %v", failAt, got, want, opens(t, th.open(t, "main-databases"), token))
		}
		return n
	}
	calls := max(move(inOwn(own), 0), move(v1alpha1.IsolationSpec{}, 0))
	t.Logf("%d calls at most", calls)
	// Each is a whole move, and many calls are looks while it goes on: a run takes three places, make chaos all.
	stride := calls/3 + 1
	if os.Getenv("COMPASS_TEST_EVERY_CALL") != "" {
		stride = 1
	}
	for n := 1; n <= calls; n += stride {
		move(inOwn(own), n)
		move(v1alpha1.IsolationSpec{}, n)
	}
}
