package flow

import (
	"math/rand/v2"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// Object is any of our kinds.
type Object interface {
	client.Object
	Common() *v1alpha1.Status
	Policy() v1alpha1.DeletionPolicy
	DriftPolicy() v1alpha1.DriftPolicy
}

// recorder tells users what changed; events.EventRecorder is one.
type recorder interface {
	Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any)
}

// Frame is what every pass of every kind shares. The zero value of each duration means its default.
type Frame struct {
	Client client.Client
	Events recorder
	// Metrics counts; nil counts nothing.
	Metrics *Metrics
	// Now is the clock; default time.Now.
	Now func() time.Time
	// Spread turns a period into one of its neighbours, so that objects made together are not looked at together. Default:
	// a tenth more or less.
	Spread func(time.Duration) time.Duration

	Resync time.Duration // until the next look when all is well, since nobody tells us of drift outside; default 10m
	Poll   time.Duration // until the next look when somebody else must move first; default 15s
	Step   time.Duration // deadline of one step; default 45s
	Budget time.Duration // deadline of all steps of a pass; default 100s. PassTimeout is longer, so End can write.
}

// PassTimeout bounds a whole pass; the manager enforces it.
const PassTimeout = 2 * time.Minute

// quiet is how soon a pass that met a newer version of its object is repeated.
const quiet = 200 * time.Millisecond

func (f Frame) withDefaults() Frame {
	if f.Now == nil {
		f.Now = time.Now
	}
	if f.Spread == nil {
		f.Spread = func(d time.Duration) time.Duration {
			return d - d/10 + rand.N(d/5+1) //nolint:gosec // not a secret
		}
	}
	for _, d := range []struct {
		value *time.Duration
		def   time.Duration
	}{{&f.Resync, 10 * time.Minute}, {&f.Poll, 15 * time.Second}, {&f.Step, 45 * time.Second}, {&f.Budget, 100 * time.Second}} {
		if *d.value <= 0 {
			*d.value = d.def
		}
	}
	return f
}

// Tell makes an event of an object that needs somebody.
func (f Frame) Tell(obj client.Object, reason, note string) {
	if f.Events != nil {
		f.Events.Eventf(obj, nil, warning, reason, action, "%s", clip(note))
	}
}
