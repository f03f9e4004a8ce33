package sim_test

import (
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/store/storetwin"
)

// controls switch rules off: of the twin, of the worker's clock, of what a Runner looks at.
type controls struct {
	storetwin.Rules
	NoTick   bool // the floor never ticks
	LoseRefs bool // half of the references are never published
	NoPrev   bool // a Runner takes whatever is newer than what it holds
	NoEpoch  bool // a Runner looks at no fence
	NoBound  bool // a move waits for the word of the old worker, whether or not it has a lease
	Faults   []string
}

func (c controls) tick() time.Duration {
	if c.NoTick {
		return 1000 * time.Hour
	}
	return floorTick
}

// blind keeps from the Runner what a command says.
func (c controls) blind(cmd *compassv1.Command) {
	if c.NoEpoch {
		cmd.Fence = nil
	}
	if d := cmd.GetDeliver(); d != nil && c.NoPrev {
		d.Prev = 0
	}
}
