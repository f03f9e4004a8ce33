package fabric_test

import (
	"testing"

	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
)

// Holds REQ-008, REQ-010, REQ-013, REQ-020, REQ-021, REQ-022, REQ-025, REQ-026, REQ-029, REQ-031, REQ-073, REQ-076,
// REQ-077, REQ-078, REQ-079, REQ-112, REQ-127, REQ-129.
func TestEventFabric(t *testing.T) {
	t.Parallel()
	fabrictest.RunEventFabric(t, func(t *testing.T) fabrictest.Ground { return newBroker(t) })
}

// Holds REQ-113, REQ-122.
func TestBroadcaster(t *testing.T) {
	t.Parallel()
	fabrictest.RunBroadcaster(t, func(t *testing.T) fabrictest.Ground { return newBroker(t) })
}

// Holds REQ-114, REQ-118, REQ-119, REQ-154.
func TestRunnerFabric(t *testing.T) {
	t.Parallel()
	fabrictest.RunRunnerFabric(t, func(t *testing.T) fabrictest.Ground { return newBroker(t) })
}
