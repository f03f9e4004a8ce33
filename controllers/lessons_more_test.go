package controllers_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Lesson 9: an operator that is uninstalled before its objects holds none of them up under Retain; under Delete they wait,
// because only an operator can remove what they made, and the next one does.
func TestLesson9OperatorGoesFirst(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	doomed := th.newTenant(t, "doomed", "main", func(o *v1alpha1.CompassTenant) { o.Spec.DeletionPolicy = v1alpha1.DeletionPolicyDelete })
	th.settle(t, doomed)
	// From here on nobody looks.
	for _, o := range []named{th.tenant, th.stream, th.server, doomed} {
		th.delete(t, o.kind(), o.name)
	}
	for _, o := range []named{th.tenant, th.stream, th.server} {
		if !th.isGone(t, o) {
			t.Errorf("%s is held, and nobody is there to let it go", o.name)
		}
	}
	if th.isGone(t, doomed) {
		t.Error("what was to be removed is forgotten")
	}
	th.settle(t, doomed)
	if !th.isGone(t, doomed) {
		t.Errorf("the next operator does not finish: %v", th.condition(t, doomed, v1alpha1.ConditionReady))
	}
}

// Lesson 13: a namespace goes while its objects are looked at: what cannot be made is skipped, the rest goes on, and nobody
// tries again in a hurry.
func TestLesson13NamespaceGoes(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: th.namespace}}
	if err := th.api.Delete(t.Context(), namespace); err != nil { // it stays terminating: nobody collects here
		t.Fatal(err)
	}
	th.delete(t, &corev1.Secret{}, "acme-api")
	res, err := th.once(t, &v1alpha1.CompassTenant{}, "acme")
	if err != nil || res.RequeueAfter < time.Minute {
		t.Errorf("again after %v, %v; want no hurry and no error", res.RequeueAfter, err)
	}
	th.says(t, th.tenant, v1alpha1.ConditionCredentialsReady, is("False", "Deleting"), "the namespace is being deleted")
	for _, goesOn := range []string{v1alpha1.ConditionDatabaseReady, v1alpha1.ConditionAccountReady, v1alpha1.ConditionDelivering} {
		if c := th.condition(t, th.tenant, goesOn); c.Status != metav1.ConditionTrue {
			t.Errorf("%v", c)
		}
	}
}

// Lesson 15: objects that are well are looked at three times, and nothing is written: neither to the API server, nor as an
// event, nor to any table.
func TestLesson15IdleWritesNothing(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	all := []named{th.server, th.tenant, th.stream}
	for i := range 10 {
		all = append(all, th.newTenant(t, fmt.Sprint("idle-", i), "main"))
	}
	th.settle(t, all...)
	th.settle(t, all...)
	th.mustBeReady(t, all...)
	conn := storetest.Connect(t, th.superDSN(t))
	// The newest transaction that wrote each row: any insert or update of any table shows.
	written := func() (sum string) {
		t.Helper()
		rows, err := conn.Query(t.Context(), `select c.relname from pg_class c where c.relnamespace = 'compass'::regnamespace and c.relkind = 'r' order by 1`)
		if err != nil {
			t.Fatal(err)
		}
		var tables []string
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				t.Fatal(err)
			}
			if name != "delivery_leases" { // the worker's own
				tables = append(tables, name)
			}
		}
		for _, table := range tables {
			var n, newest int64
			sql := fmt.Sprintf("select count(*), coalesce(max(xmin::text::bigint), 0) from compass.%q", table)
			if err := conn.QueryRow(t.Context(), sql).Scan(&n, &newest); err != nil {
				t.Fatal(err)
			}
			sum += fmt.Sprintf("%s %d %d\n", table, n, newest)
		}
		return sum
	}
	before, events := written(), len(th.events)
	th.calls.writes = nil
	for range 3 {
		for _, o := range all {
			if _, err := th.once(t, o.kind(), o.name); err != nil {
				t.Error(err)
			}
		}
	}
	if after := written(); after != before || len(th.calls.writes) > 0 || len(th.events) > events {
		t.Errorf("idle looks wrote %v, said %v, and left\n%s\nof\n%s", th.calls.writes, th.events[events:], after, before)
	}
}

// Lesson 38: a tenant's name is quoted wherever it goes, or refused before anything is made.
func TestLesson38HostileNames(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyDelete)
	for _, slug := range []string{`a"b`, `a'; --`, "A-b", "pg_x", strings.Repeat("a", 63), strings.Repeat("a", 64), "a.b", "a*", "a>", "ä", "-a"} {
		o := &v1alpha1.CompassTenant{ObjectMeta: metav1.ObjectMeta{Namespace: th.namespace, GenerateName: "x-"}}
		o.Spec.ServerRef.Name, o.Spec.Slug = "main", slug
		if err := th.api.Create(t.Context(), o); err == nil {
			t.Errorf("the slug %q was taken", slug)
		}
	}
	for _, slug := range []string{"a-b", "postgres", "public", "0", "null", strings.Repeat("a", 48)} {
		name := "n" + slug[:min(len(slug), 30)]
		o := th.newTenant(t, name, "main", func(o *v1alpha1.CompassTenant) {
			o.Spec.Slug, o.Spec.SQLAccess.Enabled, o.Spec.DeletionPolicy = slug, true, v1alpha1.DeletionPolicyDelete
			o.Spec.DisplayName = `"; drop schema compass cascade; --'`
		})
		th.settle(t, o, th.stream, o)
		th.settle(t, o)
		th.mustBeReady(t, o)
		if uri := string(th.secret(t, name+"-sql")["uri"]); !storetest.Opens(t, uri) {
			t.Errorf("%s: its SQL login does not open", slug)
		}
		th.removeObject(t, o)
		if !th.isGone(t, o) {
			t.Errorf("%s is held: %v", slug, th.condition(t, o, v1alpha1.ConditionReady))
		}
	}
}

// Lesson 51: a hundred looks at a server whose Postgres takes connections and answers nothing leave no more of them open than
// one look needs, and the server beside it is as well as before.
func TestLesson51ServerThatNeverAnswers(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var open, most atomic.Int64
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				for n := open.Add(1); ; {
					was := most.Load()
					if n <= was || most.CompareAndSwap(was, n) {
						break
					}
				}
				one := make([]byte, 1)
				_, _ = io.ReadFull(conn, one) // the startup message begins with 0
				_ = conn.Close()
				open.Add(-1)
			}()
		}
	}()
	th.create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: th.namespace, Name: "dead"},
		StringData: map[string]string{"uri": "postgres://user:secret-word@" + listener.Addr().String() + "/postgres?sslmode=disable"},
	})
	dead := th.newServer(t, "dead", func(o *v1alpha1.CompassServer) { o.Spec.Database.AdminSecretRef.Name = "dead" })
	for range 100 {
		_, _ = th.once(t, &v1alpha1.CompassServer{}, "dead")
	}
	th.says(t, dead, v1alpha1.ConditionDatabaseReady, is("Unknown", "DatabaseUnreachable"), "does not answer")
	eventually(t, "every connection to it is closed", func() bool { return open.Load() == 0 })
	if n := most.Load(); n > 2 {
		t.Errorf("%d connections at once", n)
	}
	th.settle(t, th.server, th.tenant, th.stream)
	th.mustBeReady(t, th.server, th.tenant, th.stream)
}

// Lesson 52: of Secrets the cache holds what carries our label, so memory does not grow with what others keep in theirs; a
// referenced one is read when it is needed.
func TestLesson52ForeignSecretsAreNotKept(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	config, err := cluster()
	if err != nil {
		t.Fatal(err)
	}
	options := controllers.CacheOptions()
	options.Scheme = newScheme(t)
	options.DefaultNamespaces = map[string]cache.Config{g.namespace: {}}
	held, err := cache.New(config, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- held.Start(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	secret := func(name string, labels map[string]string) {
		t.Helper()
		g.create(t, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: name, Labels: labels}, Data: map[string][]byte{"x": make([]byte, 35<<10)},
		})
	}
	for i := range 20 {
		secret(fmt.Sprint("theirs-", i), map[string]string{"app.kubernetes.io/managed-by": "somebody"})
	}
	secret("ours", map[string]string{naming.LabelManagedBy: naming.ManagedBy})
	eventually(t, "our own is in the cache", func() bool {
		return held.Get(t.Context(), client.ObjectKey{Namespace: g.namespace, Name: "ours"}, &corev1.Secret{}) == nil
	})
	list := &corev1.SecretList{}
	if err := held.List(t.Context(), list); err != nil || len(list.Items) != 1 {
		t.Errorf("%d Secrets are kept, %v; want our one", len(list.Items), err)
	}
}
