package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

func three(o *v1alpha1.CompassServer) { o.Spec.NATS.Managed.Replicas = 3 }

// onAll sees that every NATS server of this ground lets the Servers in.
func (th thread) onAll(t *testing.T, servers int) {
	t.Helper()
	if len(th.nats) != servers {
		t.Errorf("%d NATS servers run, want %d", len(th.nats), servers)
	}
	if err := th.enter(t, th.secret(t, "main-server")["nats.creds"], fabric.InboxPrefix(fabric.RoleServer, "")); err != nil {
		t.Errorf("a NATS server does not know the account of the Servers: %v", err)
	}
	o := &v1alpha1.CompassServer{}
	if th.get(t, o, "main"); int(o.Status.NATS.Servers) != servers {
		t.Errorf("status tells of %d NATS servers, want %d", o.Status.NATS.Servers, servers)
	}
	roles := slices.Sorted(maps.Values(o.Status.NATS.SigningKeys))
	if !slices.Equal(roles, []string{"current", "next"}) {
		t.Errorf("signing keys %v", o.Status.NATS.SigningKeys)
	}
}

// Holds REQ-126, REQ-204: three NATS servers hold every account, also after volumes were lost (lesson 30); and a change of
// their configuration, which restarts one after the other, refuses no reference for longer than a choice of leader takes.
func TestThreeNATSServers(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	th := thread{operator: newOperator(t, g, &calls{})}
	th.server = g.newServer(t, "main", three)
	th.tenant, th.stream = g.newTenant(t, "acme", "main"), g.newStream(t, "main", "main")
	all := []named{th.server, th.tenant, th.stream}
	th.settle(t, all...)
	th.mustBeReady(t, all...)
	th.onAll(t, 3)

	at := "nats://main-nats." + g.namespace + ".svc:4222"
	lose := func(pods ...int) {
		t.Helper()
		for _, i := range pods {
			g.nats[ordinal(at, i)].Wipe(t)
		}
		th.settle(t, all...)
		th.mustBeReady(t, all...)
		th.onAll(t, 3)
	}
	lose(1)
	lose(0, 1, 2)

	published, stop := th.publish(t, at)
	eventually(t, "references are published", func() bool { return published() > 0 })
	o := &v1alpha1.CompassServer{}
	g.update(t, o, "main", func() { o.Spec.NATS.Managed.SyncInterval = "200ms" })
	before := published()
	th.settle(t, all...)
	th.mustBeReady(t, all...)
	eventually(t, "references are published after it", func() bool { return published() > before })
	kept := stop()
	if n := published(); kept != uint64(n) && kept != uint64(n)+1 { //nolint:gosec // counts; the last one's acknowledgement may be lost
		t.Errorf("%d references are kept of %d that were acknowledged", kept, n)
	}
}

// publish keeps publishing into a stream of three copies, each reference until it is acknowledged. stop tells how many the
// stream then holds.
func (th thread) publish(t *testing.T, at string) (published func() int64, stop func() uint64) {
	t.Helper()
	spec := fabric.StreamSpec{Name: "big", Replicas: 3}
	if _, err := th.pool.EnsureStream(t.Context(), th.place(t), spec, v1alpha1.AdoptionNever); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "nats.creds")
	if err := os.WriteFile(file, th.secret(t, "main-server")["nats.creds"], 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := fabric.Open(t.Context(), fabric.Config{
		Name: "test", URLs: th.dial(at), Logger: slog.New(slog.DiscardHandler), StreamOf: func(string) (string, bool) { return "big", true },
		Credentials: fabric.Credentials{File: file, InboxPrefix: fabric.InboxPrefix(fabric.RoleServer, "")}, PublishTimeout: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var count atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = f.Close(context.WithoutCancel(ctx)) }()
		for ctx.Err() == nil {
			ref := fabrictest.Ref(fabrictest.TenantA, fmt.Sprint(count.Load()))
			subject, err := fabric.CommsSubject(ref.Tenant, ref.Kind)
			if err = errors.Join(err, f.Publish(context.WithoutCancel(ctx), subject, ref)); err == nil {
				count.Add(1)
			}
		}
	}()
	return count.Load, func() uint64 {
		cancel()
		<-done
		var seen fabric.StreamSeen
		eventually(t, "the stream can be read", func() (ok bool) { // a leader may just be chosen
			var err error
			seen, err = th.pool.EnsureStream(t.Context(), th.place(t), spec, v1alpha1.AdoptionNever)
			return err == nil
		})
		return seen.Messages
	}
}

// Holds REQ-204, REQ-212: one NATS server becomes three by an edit, with the same keys, and what was on it is on all.
func TestOneNATSServerBecomesThree(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	keys := th.secret(t, "main-keys")
	o := &v1alpha1.CompassServer{}
	th.update(t, o, "main", func() { three(o) })
	all := []named{th.server, th.tenant, th.stream}
	th.settle(t, all...)
	th.mustBeReady(t, all...)
	th.onAll(t, 3)
	if !sameData(keys, th.secret(t, "main-keys")) {
		t.Error("the keys changed")
	}
	routes := th.secret(t, "main-nats-routes")
	th.settle(t, all...)
	if len(routes["ca.crt"]) == 0 || !sameData(routes, th.secret(t, "main-nats-routes")) {
		t.Error("the certificate of the routes is not there, or was made anew")
	}
}
