package flow_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/flow"
)

// backends are servers of which some hang until a pass's deadline.
type backends struct{ hangs string }

// Reconcile see reconcile.ObjectReconciler.
func (b backends) Reconcile(ctx context.Context, t *v1alpha1.CompassTenant) (reconcile.Result, error) {
	pass := 20 * time.Millisecond
	if t.Spec.ServerRef.Name == b.hangs {
		pass = 45 * time.Second // the deadline of a step
	}
	select {
	case <-ctx.Done():
		return reconcile.Result{}, ctx.Err()
	case <-time.After(pass):
		return reconcile.Result{}, nil
	}
}

// latencies runs a queue with some places over tenants of two servers for a while, each looked at again some time after it
// was, and returns how long those of the server "well" waited for their looks to end, sorted.
func latencies(t *testing.T, next reconcile.ObjectReconciler[*v1alpha1.CompassTenant]) (out []time.Duration) {
	t.Helper()
	const places, each, resync, run = 16, 100, 10 * time.Second, 10 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		type item struct {
			tenant *v1alpha1.CompassTenant
			since  time.Time
		}
		ctx, end := context.WithTimeout(t.Context(), run)
		defer end()
		queue := make(chan item, 4*each)
		put := func(o *v1alpha1.CompassTenant, after time.Duration) {
			time.AfterFunc(after, func() { queue <- item{o, time.Now()} })
		}
		for i := range each {
			for _, server := range []string{"well", "ill"} {
				o := &v1alpha1.CompassTenant{}
				o.Name, o.Spec.ServerRef.Name = fmt.Sprint(server, i), server
				put(o, time.Duration(i)*resync/each)
			}
		}
		results := make(chan time.Duration, 1_000_000)
		for range places {
			go func() {
				for {
					select {
					case <-ctx.Done():
						return
					case i := <-queue:
						res, err := next.Reconcile(ctx, i.tenant)
						if ctx.Err() != nil {
							return
						}
						if res.RequeueAfter > 0 || err != nil {
							put(i.tenant, max(res.RequeueAfter, time.Second))
							continue
						}
						if i.tenant.Spec.ServerRef.Name == "well" {
							results <- time.Since(i.since)
						}
						put(i.tenant, resync)
					}
				}
			}()
		}
		<-ctx.Done()
		synctest.Wait()
		close(results)
		for d := range results {
			out = append(out, d)
		}
		for len(queue) > 0 {
			<-queue
		}
	})
	slices.Sort(out)
	return out
}

// Holds REQ-219 and operator lesson 51: one server whose backends hang leaves the others' looks within 1.5 times of what they
// take without it. The clock is the bubble's, so this is a figure of the order of work and of no machine.
func TestOneServerThatHangs(t *testing.T) {
	t.Parallel()
	fair := func(hangs string) reconcile.ObjectReconciler[*v1alpha1.CompassTenant] {
		return &flow.Fair[*v1alpha1.CompassTenant]{
			Next: backends{hangs}, Most: 8, Now: time.Now,
			Server: func(o *v1alpha1.CompassTenant) client.ObjectKey { return client.ObjectKey{Name: o.Spec.ServerRef.Name} },
		}
	}
	alone, beside, without := latencies(t, fair("")), latencies(t, fair("ill")), latencies(t, backends{"ill"})
	at := func(all []time.Duration, share float64) time.Duration {
		if len(all) == 0 {
			return time.Hour
		}
		return all[int(float64(len(all)-1)*share)]
	}
	t.Logf("median and p99 of the others: %v %v alone, %v %v beside one that hangs; unguarded %v %v (%d looks instead of %d)",
		at(alone, .5), at(alone, .99), at(beside, .5), at(beside, .99), at(without, .5), at(without, .99), len(without), len(alone))
	for _, share := range []float64{.5, .99} {
		if ratio := float64(at(beside, share)) / float64(at(alone, share)); ratio > 1.5 {
			t.Errorf("%v of the looks take %.2f times as long", share, ratio)
		}
	}
	if len(beside) < len(alone)*9/10 {
		t.Errorf("%d looks, %d alone", len(beside), len(alone))
	}
	if at(without, .99) < 2*at(alone, .99) {
		t.Error("nothing hangs without the guard, so this shows nothing")
	}
}
