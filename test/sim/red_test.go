package sim_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rigelbuild/compass-operator/internal/store/storetwin"
)

// red are the rules that the protocol needs, each switched off alone. want is what the checker says then.
var red = []struct {
	rule     string
	controls controls
	want     string
	within   int
}{
	{"the floor ticks", controls{NoTick: true, LoseRefs: true, Faults: []string{"lose stream"}}, "LOST", 20},
	{"K1: the position is that of the settle", controls{Rules: storetwin.Rules{PosAtPost: true}, Faults: []string{"kill worker", "kill runner"}}, "LOST", 40},
	{"K1: numbers are taken under the head's lock", controls{Rules: storetwin.Rules{Sequence: true}, Faults: []string{"pause server"}}, "LOST", 80},
	{"K2: a Runner takes only what follows", controls{NoPrev: true, Faults: []string{"kill worker"}}, "LOST", 40},
	{"K3: a Runner refuses a lower fence", controls{NoEpoch: true, Faults: []string{"pause worker"}}, "STALE", 100},
	{"D6: health is observed", controls{Rules: storetwin.Rules{BlindHealth: true}, Faults: []string{"postgres away", "nats away"}}, "EXPIRED", 40},
	{"T5: a statement sees its tenant", controls{Rules: storetwin.Rules{ScopeOff: true}, Faults: []string{"kill server"}}, "", 10},
	{"RouteInTx", controls{Rules: storetwin.Rules{RouteLater: true}, Faults: []string{"kill server"}}, "TWICE", 40},
	{"SteerAck", controls{Rules: storetwin.Rules{SteerMoves: true}, Faults: []string{"kill runner"}}, "LOST", 60},
	{"AckPos", controls{Rules: storetwin.Rules{AckAnyPos: true}, Faults: []string{"failover"}}, "LOST", 600},
	{"TickAll", controls{Rules: storetwin.Rules{TickMoved: true}, LoseRefs: true, Faults: []string{"kill worker", "lose stream"}}, "LOST", 100},
	{"HbOrder", controls{Rules: storetwin.Rules{HbAnyOrder: true}, Faults: []string{"pause server"}}, "HEARTBEAT", 60},
	{"HbClaims", controls{Rules: storetwin.Rules{HbNoClaims: true}, Faults: []string{"failover", "kill runner"}}, "", 60},
	{"IncMismatch", controls{Rules: storetwin.Rules{AnyIncarnate: true}, Faults: []string{"kill runner"}}, "", 20},
	{"AttemptClear", controls{Rules: storetwin.Rules{KeepAttempts: true}, Faults: []string{"kill worker"}}, "innocent", 20},
	{"ReplayOwed", controls{Rules: storetwin.Rules{ReplayForgets: true}, Faults: []string{"poison", "replay"}}, "LOST", 40},
	{"OneTurn", controls{Rules: storetwin.Rules{ManyTurns: true}, Faults: []string{"kill server"}}, "for ever", 40},
	{"MicroClock, Timeline", controls{Rules: storetwin.Rules{Milliseconds: true}, Faults: []string{"failover"}}, "", 100},
	{"BindLock", controls{Rules: storetwin.Rules{BindLoose: true}, Faults: []string{"kill runner"}}, "", 100},
	{"K3: a write proves that it is the writer's", controls{Rules: storetwin.Rules{NoWriter: true}, Faults: []string{"pause worker", "failover", "move"}}, "WRITER", 100},
	{"AssertExpiry", controls{Rules: storetwin.Rules{LeaseForEver: true}, Faults: []string{"pause worker", "failover"}}, "WRITER", 200},
	{"ExpireRecheck, HealthDB", controls{Rules: storetwin.Rules{NoRecheck: true}, Faults: []string{"cut runner", "pause server"}}, "EXPIRED", 300},
	{"MoveBound", controls{NoBound: true, Faults: []string{"suspend"}}, "MOVE", 20},
	{"CmdChain", controls{Rules: storetwin.Rules{CountCommands: true}, Faults: []string{"failover"}}, "STEER", 60},
	{"CmdHeads, CmdReack", controls{Rules: storetwin.Rules{SilentHeads: true}, Faults: []string{"kill server", "nats away"}}, "STEER", 60},
}

// Each rule off: the checker sees it, within so many seeds. The same seed with the rule is green.
//
// Holds REQ-060, REQ-226, REQ-229.
func TestControls(t *testing.T) {
	for _, c := range red {
		t.Run(c.rule, func(t *testing.T) {
			for seed := uint64(1); seed <= uint64(c.within); seed++ {
				o := schedule(t, seed, c.controls, nil)
				if len(o.bad) == 0 || !strings.Contains(strings.Join(o.bad, "\n"), c.want) {
					continue
				}
				t.Logf("red at seed %d: %s", seed, o.bad[0])
				whole := controls{LoseRefs: c.controls.LoseRefs, Faults: c.controls.Faults}
				if o := schedule(t, seed, whole, nil); len(o.bad) > 0 {
					t.Errorf("seed %d is red with the rule too: %s\nagain: %s", seed, fmt.Sprint(o.bad), again(o, whole))
				}
				return
			}
			t.Errorf("%d seeds are green without it", c.within)
		})
	}
}
