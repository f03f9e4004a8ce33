package flow_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rigelbuild/compass-operator/controllers/flow"
)

// For REQ-220: what is only looked at again waits, of whatever kind, while something of its server is under way that somebody
// asked for; another server's does not. When people keep the server busy it goes on all the same, one at a time, and afterwards as before.
func TestIdlePassesWaitForAskedOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := flow.NewAsked(time.Now)
		takes := func(r reconcile.Request) time.Duration {
			if strings.HasPrefix(r.Name, "main-9") { // of the ones that somebody asks for
				return 300 * time.Millisecond
			}
			return quick(r)
		}
		tenants, streams := workBeside(asked, true, 0, takes), workBeside(asked, true, 0, takes)
		kinds := []*passes{tenants, streams}
		looks := func() (n int) {
			for _, p := range kinds {
				p.mu.Lock()
				for _, r := range p.order {
					if server(r) == "main" && !strings.HasPrefix(r.Name, "main-9") {
						n++
					}
				}
				p.mu.Unlock()
			}
			return n
		}
		for _, p := range kinds {
			for i := range 8000 {
				p.put(object("main", 10000+i), 0, handler.LowPriority)
			}
		}
		<-time.After(50 * time.Millisecond)
		tenants.put(object("main", 90001), 0, 0)
		<-time.After(25 * time.Millisecond) // those that had begun end
		before := looks()
		streams.put(object("other", 1), 0, handler.LowPriority)
		<-time.After(250 * time.Millisecond)
		if n := looks() - before; n > 0 {
			t.Errorf("%d were looked at that nobody asked for, while somebody waits", n)
		}
		streams.mu.Lock()
		if !slices.Contains(streams.order, object("other", 1)) {
			t.Error("another server's waits as well")
		}
		streams.mu.Unlock()
		<-time.After(100 * time.Millisecond)
		before = looks()
		<-time.After(200 * time.Millisecond)
		if n, want := looks()-before, 2*idle*10; n < want*9/10 {
			t.Errorf("afterwards %d were looked at in 200 ms, want %d", n, want)
		}

		for i := range 200 { // half a minute of somebody who does something all the time
			tenants.put(object("main", 90010+i), time.Duration(i)*150*time.Millisecond, 0)
		}
		<-time.After(10 * time.Second)
		before = looks()
		<-time.After(10 * time.Second)
		// A pass takes 20 ms, and of each kind one goes on at a time.
		if n := looks() - before; n < 900 || n > 1010 {
			t.Errorf("%d were looked at in ten seconds while somebody kept the server busy, want one at a time of each kind", n)
		}
		for _, p := range kinds {
			p.stop()
		}
	})
}
