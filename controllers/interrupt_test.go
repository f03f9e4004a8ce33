package controllers_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// from counts calls anew, and lets the n-th of them fail after it took effect: for the operator that is the same as to die
// there, and for the world the worst moment, because the answer is what was lost.
func (c *calls) from(n int) { c.n, c.failAt = 0, n }

// upDown brings a server up and takes it down again, with one interruption on each way, and returns how many calls each
// took.
func upDown(t *testing.T, up, down int) (ups, downs int) {
	t.Helper()
	g := newGround(t)
	th := thread{operator: newOperator(t, g, &calls{})}
	th.server = g.newServer(t, "main", func(o *v1alpha1.CompassServer) {
		o.Spec.DeletionPolicy = v1alpha1.DeletionPolicyDelete
		th.database = o.Spec.Database.Name
	})
	th.calls.from(up)
	th.settle(t, th.server)
	ups = th.calls.n
	th.calls.from(0)
	th.settle(t, th.server)
	th.mustBeReady(t, th.server)
	th.checkOnce(t)

	th.calls.from(down)
	th.delete(t, &v1alpha1.CompassServer{}, "main")
	th.settle(t, th.server)
	downs = th.calls.n
	th.mustBeGone(t)
	return ups, downs
}

// checkOnce: what was made once is there once, and is what is in use.
func (th thread) checkOnce(t *testing.T) {
	t.Helper()
	o := &v1alpha1.CompassServer{}
	th.get(t, o, "main")
	keys, missing, err := fabric.CompleteKeys(th.secret(t, "main-keys"))
	if err != nil || missing != nil || keys.Operator.Public() != o.Status.NATS.OperatorKey {
		t.Errorf("keys: %v, missing %v; NATS trusts %s", err, missing, o.Status.NATS.OperatorKey)
	}
	dsn, err := storetest.WithDatabase(th.postgres.SuperDSN, th.database)
	if err != nil {
		t.Fatal(err)
	}
	conn := storetest.Connect(t, dsn)
	defer conn.Close(t.Context())
	for table, want := range map[string]int{"tenants": 1, "accounts": 1, "account_tokens": 1, "runner_tokens": 1} {
		var n int
		if err := conn.QueryRow(t.Context(), "select count(*) from compass."+table).Scan(&n); err != nil || n != want {
			t.Errorf("%d rows in %s, %v; want %d", n, table, err, want)
		}
	}
}

// onceEach lets each different call of a server's operator fail once, one in a pass, until none is left that has not.
func (th thread) onceEach(t *testing.T) (failed int) {
	t.Helper()
	th.calls.failed = map[string]bool{}
	for {
		th.calls.armed = true
		_, _ = th.once(t, th.server.kind(), th.server.name) // what went wrong is in the conditions
		th.kubelet(t)
		if th.calls.armed {
			th.calls.armed = false
			return len(th.calls.failed)
		}
	}
}

// Holds REQ-212, REQ-223, REQ-241: wherever the operator of a server is interrupted, it ends at the same state, with the
// identity that was stored first. In one life each call fails once, in another pass each; make chaos gives each call a life of
// its own.
func TestInterruptedServer(t *testing.T) {
	t.Parallel()
	if os.Getenv("COMPASS_TEST_EVERY_CALL") != "" {
		everyLife(t)
		return
	}
	g := newGround(t)
	th := thread{operator: newOperator(t, g, &calls{})}
	th.server = g.newServer(t, "main", func(o *v1alpha1.CompassServer) {
		o.Spec.DeletionPolicy = v1alpha1.DeletionPolicyDelete
		th.database = o.Spec.Database.Name
	})
	up := th.onceEach(t)
	th.settle(t, th.server)
	th.mustBeReady(t, th.server)
	th.checkOnce(t)
	th.delete(t, &v1alpha1.CompassServer{}, "main")
	down := th.onceEach(t)
	th.settle(t, th.server)
	th.mustBeGone(t)
	t.Logf("%d calls failed on the way up, %d on the way down", up, down)
	if up < 30 || down < 8 {
		t.Errorf("%d calls failed on the way up, %d on the way down: some were not counted", up, down)
	}
}

// everyLife interrupts one life at each call of an undisturbed one.
func everyLife(t *testing.T) {
	t.Helper()
	ups, downs := upDown(t, 0, 0)
	t.Logf("%d calls up, %d down", ups, downs)
	for n := 1; n <= ups; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			upDown(t, n, 1+n%downs)
		})
	}
}

// mustBeGone: nothing of a server is left that its deletion had to remove.
func (th thread) mustBeGone(t *testing.T) {
	t.Helper()
	if !th.isGone(t, th.server) {
		t.Fatalf("held: %v", th.condition(t, th.server, v1alpha1.ConditionReady))
	}
	if seen := th.observe(t); seen.Exists || len(seen.Roles) > 0 || th.secret(t, "main-keys") != nil {
		t.Errorf("left: %+v", seen)
	}
}

// interrupted brings one object up and takes it down, with one interruption on each way, on a ground where everything else
// is ready. made says how many calls either took; check judges the state in between.
func (th thread) interrupted(t *testing.T, o named, up, down int, check func()) (ups, downs int) {
	t.Helper()
	th.calls.from(up)
	th.settle(t, o)
	ups = th.calls.n
	th.calls.from(0)
	th.settle(t, o)
	check()
	th.calls.from(down)
	th.delete(t, o.kind(), o.name)
	th.settle(t, o)
	downs = th.calls.n
	th.calls.from(0)
	th.settle(t, o)
	if !th.isGone(t, o) {
		t.Fatalf("held: %v", th.condition(t, o, v1alpha1.ConditionReady))
	}
	return ups, downs
}

// everyCall runs once undisturbed, to count, and then once per call, until each way was interrupted at each of its calls.
func everyCall(t *testing.T, once func(t *testing.T, i, up, down int) (ups, downs int)) {
	t.Helper()
	ups, downs := once(t, 0, 0, 0)
	t.Logf("%d calls up, %d down", ups, downs)
	for n := 1; n <= max(ups, downs); n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) { once(t, n, min(n, ups), min(n, downs)) })
	}
}

// Holds REQ-206, REQ-212, REQ-223: the same for a tenant: one row, one admin, one token, one account, whatever was lost.
func TestInterruptedTenant(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	s := th.open(t, "main-databases")
	dsn, err := storetest.WithDatabase(th.postgres.SuperDSN, th.databaseOf(t))
	if err != nil {
		t.Fatal(err)
	}
	conn := storetest.Connect(t, dsn)
	everyCall(t, func(t *testing.T, i, up, down int) (int, int) {
		t.Helper()
		name := fmt.Sprintf("tenant-%d", i)
		o := th.newTenant(t, name, "main", func(o *v1alpha1.CompassTenant) { o.Spec.DeletionPolicy = v1alpha1.DeletionPolicyDelete })
		ups, downs := th.interrupted(t, o, up, down, func() {
			seen := &v1alpha1.CompassTenant{}
			th.get(t, seen, name)
			row, err := s.TenantBySlug(t.Context(), name)
			if err != nil || string(row.ID) != seen.Status.TenantID {
				t.Errorf("row %+v, %v; status says %s", row, err, seen.Status.TenantID)
			}
			for _, table := range []string{"accounts", "account_tokens", "placements"} {
				var n int
				if err := conn.QueryRow(t.Context(), "select count(*) from compass."+table+" where tenant_id = $1", row.ID).Scan(&n); err != nil || n != 1 {
					t.Errorf("%d rows in %s, %v; want 1", n, table, err)
				}
			}
			for _, c := range seen.Status.Conditions {
				if c.Status != "True" && c.Type != v1alpha1.ConditionDelivering && c.Type != v1alpha1.ConditionReady {
					t.Errorf("%s: %s %s", c.Type, c.Reason, c.Message)
				}
			}
		})
		if _, err := s.TenantBySlug(t.Context(), name); err == nil || th.secret(t, name+"-keys") != nil {
			t.Errorf("left: the row (%v) or the keys", err)
		}
		return ups, downs
	})
}

func (th thread) databaseOf(t *testing.T) string {
	t.Helper()
	o := &v1alpha1.CompassServer{}
	th.get(t, o, "main")
	return o.Spec.Database.Name
}

// Holds REQ-208, REQ-223: the same for a stream.
func TestInterruptedStream(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	s := th.open(t, "main-databases")
	solo := th.newTenant(t, "solo", "main")
	th.settle(t, solo)
	everyCall(t, func(t *testing.T, i, up, down int) (int, int) {
		t.Helper()
		name := fmt.Sprintf("stream-%d", i)
		o := th.newStream(t, name, "main", func(o *v1alpha1.DeliveryStream) {
			o.Spec.Tenants = v1alpha1.TenantSelection{Names: []string{"solo"}}
			o.Spec.DeletionPolicy = v1alpha1.DeletionPolicyDelete
		})
		ups, downs := th.interrupted(t, o, up, down, func() {
			th.mustBeReady(t, o)
			if row, err := s.TenantBySlug(t.Context(), "solo"); err != nil || row.Stream != name {
				t.Errorf("solo is with %q, %v; want %s", row.Stream, err, name)
			}
		})
		if row, err := s.TenantBySlug(t.Context(), "solo"); err != nil || row.Stream != "" {
			t.Errorf("solo is with %q, %v; want nobody", row.Stream, err)
		}
		return ups, downs
	})
}
