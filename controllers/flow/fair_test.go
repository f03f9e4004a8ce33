package flow_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rigelbuild/compass-operator/controllers/flow"
)

type queue = priorityqueue.PriorityQueue[reconcile.Request]

// passes are what a kind's workers do with a queue in a bubble; an object's name begins with that of its server.
type passes struct {
	queue
	takes func(reconcile.Request) time.Duration

	mu      sync.Mutex
	order   []reconcile.Request
	most    map[string]int // of a server at once
	now     map[string]int
	waited  []time.Duration // of objects of "well", from when they were due until they were looked at
	due     map[reconcile.Request]time.Time
	workers sync.WaitGroup
}

const places, half, idle = 16, 8, 4

func server(r reconcile.Request) string { s, _, _ := strings.Cut(r.Name, "-"); return s }

// work starts the workers. fair or not; an object is looked at again after resync.
func work(fair bool, resync time.Duration, takes func(reconcile.Request) time.Duration) *passes {
	return workBeside(flow.NewAsked(time.Now), fair, resync, takes)
}

// workBeside is for one of several kinds, which share asked.
func workBeside(asked *flow.Asked, fair bool, resync time.Duration, takes func(reconcile.Request) time.Duration) *passes {
	p := &passes{takes: takes, most: map[string]int{}, now: map[string]int{}, due: map[reconcile.Request]time.Time{}}
	p.queue = priorityqueue.New[reconcile.Request]("test")
	if fair {
		p.queue = flow.NewFair(p.queue, flow.FairOptions{
			Most: half, Idle: idle, Asked: asked, Now: time.Now, Server: func(r reconcile.Request) client.ObjectKey { return client.ObjectKey{Name: server(r)} },
		})
	}
	for range places {
		p.workers.Go(func() {
			for {
				item, _, shutdown := p.GetWithPriority()
				if shutdown {
					return
				}
				p.begin(item)
				<-time.After(takes(item))
				p.end(item)
				p.Done(item)
				if resync > 0 {
					p.put(item, resync, handler.LowPriority)
				}
			}
		})
	}
	return p
}

func (p *passes) put(item reconcile.Request, after time.Duration, priority int) {
	p.mu.Lock()
	p.due[item] = time.Now().Add(after)
	p.mu.Unlock()
	p.AddWithOpts(priorityqueue.AddOpts{After: after, Priority: &priority}, item)
}

func (p *passes) begin(item reconcile.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := server(item)
	p.order = append(p.order, item)
	p.now[s]++
	p.most[s] = max(p.most[s], p.now[s])
}

func (p *passes) end(item reconcile.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now[server(item)]--
	if server(item) == "well" {
		p.waited = append(p.waited, time.Since(p.due[item]))
	}
}

func (p *passes) stop() {
	p.ShutDown()
	p.workers.Wait()
	slices.Sort(p.waited)
}

func object(server string, i int) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Name: fmt.Sprintf("%s-%d", server, i)}}
}

// quick is a pass where the backends answer.
func quick(reconcile.Request) time.Duration { return 20 * time.Millisecond }

// latencies runs the workers over tenants of two servers for a while, and returns how long those of the server "well" took.
func latencies(t *testing.T, fair bool, takes func(reconcile.Request) time.Duration) (out []time.Duration) {
	t.Helper()
	const each, resync, run = 100, 10 * time.Second, 3 * time.Minute
	synctest.Test(t, func(*testing.T) {
		p := work(fair, resync, takes)
		for i := range each {
			p.put(object("well", i), time.Duration(i)*resync/each, handler.LowPriority)
			p.put(object("ill", i), time.Duration(i)*resync/each, handler.LowPriority)
		}
		<-time.After(run)
		p.stop()
		out = p.waited
	})
	return out
}

// Holds REQ-219 and operator lesson 51: one server whose backends hang leaves the others' looks within 1.5 times of what they
// take without it. The clock is the bubble's, so this is a figure of the order of work and of no machine.
func TestOneServerThatHangs(t *testing.T) {
	t.Parallel()
	hangs := func(r reconcile.Request) time.Duration {
		if server(r) == "ill" {
			return 45 * time.Second // the deadline of a step
		}
		return quick(r)
	}
	alone, beside, without := latencies(t, true, quick), latencies(t, true, hangs), latencies(t, false, hangs)
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

// Holds REQ-219 and operator lesson 53: after a restart ten thousand objects wait to be looked at, all of one server. What a user
// makes or edits meanwhile, also an object that waits already, goes before it, and no place stays empty.
func TestEditsGoBeforeABacklog(t *testing.T) {
	t.Parallel()
	const backlog = 10_000
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := work(true, 0, quick)
		for i := range backlog {
			p.put(object("main", i), 0, handler.LowPriority)
		}
		<-time.After(50 * time.Millisecond)
		made, edited := object("main", backlog), object("main", backlog-1)
		p.put(made, 0, 0)
		p.put(edited, 0, 0)
		ideal := quick(made) * (backlog + 1) / idle
		for seen := 0; seen < backlog+1 && time.Since(began) < 2*ideal; { // until everything was looked at
			<-time.After(100 * time.Millisecond)
			p.mu.Lock()
			seen = len(p.order)
			p.mu.Unlock()
		}
		took := time.Since(began)
		p.stop()
		for _, item := range []reconcile.Request{made, edited} {
			if at := slices.Index(p.order, item); at > 3*idle+1 { // three rounds began in 50 ms, and both have places of their own
				t.Errorf("%s was looked at after %d of the backlog", item.Name, at)
			}
		}
		if n := p.most["main"]; n < idle || n > half {
			t.Errorf("%d at once, want %d, and more for what somebody asked for", n, idle)
		}
		if took > ideal*11/10 {
			t.Errorf("the backlog took %v where %v would do: places stay empty", took, ideal)
		}
	})
}

// A server whose passes were slow gets its places back when they are quick again, and what is deleted while it waits keeps
// nobody waiting.
func TestSlowServerRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ill sync.Map
		ill.Store("ill", true)
		p := work(true, time.Second, func(r reconcile.Request) time.Duration {
			if _, is := ill.Load(server(r)); is {
				return 45 * time.Second
			}
			return quick(r)
		})
		for i := range 100 {
			p.put(object("ill", i), 0, 0)
		}
		<-time.After(10 * time.Minute)
		p.mu.Lock()
		p.most = map[string]int{}
		p.mu.Unlock()
		<-time.After(10 * time.Minute)
		p.mu.Lock()
		slow := p.most["ill"]
		p.mu.Unlock()
		if slow != 1 {
			t.Errorf("%d passes of a slow server at once, want one that sees whether it is well again", slow)
		}
		ill.Delete("ill")
		<-time.After(2 * time.Minute)
		p.mu.Lock()
		p.order, p.most = nil, map[string]int{}
		p.mu.Unlock()
		<-time.After(10 * time.Second)
		p.stop()
		if looks := len(p.order); looks < 500 || p.most["ill"] < 2 {
			t.Errorf("%d looks in ten seconds, %d at once", looks, p.most["ill"])
		}
	})
}
