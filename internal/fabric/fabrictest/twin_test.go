package fabrictest_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

func ground(*testing.T) fabrictest.Ground { return fabrictest.NewBroker() }

func TestTwinEventFabric(t *testing.T) {
	t.Parallel()
	fabrictest.RunEventFabric(t, ground)
}

func TestTwinBroadcaster(t *testing.T) {
	t.Parallel()
	fabrictest.RunBroadcaster(t, ground)
}

func TestTwinRunnerFabric(t *testing.T) {
	t.Parallel()
	fabrictest.RunRunnerFabric(t, ground)
}

// A test of an hour of retries must not take one: the twin lives in a bubble with a clock of its own.
func TestTwinInABubble(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := fabrictest.NewBroker().Connect(fabrictest.Options{Stream: fabrictest.Stream})
		began := time.Now()
		var tries atomic.Int64
		end, err := f.SubscribeKind(t.Context(), fabric.KindMessagePosted, func(context.Context, fabric.EventRef) error {
			if tries.Add(1) < 60 {
				return fault.RetryAfter(time.Minute, fabrictest.ErrBoom)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		subject, _ := fabric.CommsSubject(fabrictest.TenantA, fabric.KindMessagePosted)
		if err := f.Publish(t.Context(), subject, fabrictest.Ref(fabrictest.TenantA, "m_1")); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Hour)
		if tries.Load() != 60 {
			t.Errorf("tried %d times in %s, want 60", tries.Load(), time.Since(began))
		}
		end()
	})
}
