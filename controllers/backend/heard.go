package backend

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// Heard is word from outside that something of a CompassServer may have changed. It is a hint: whoever hears it looks.
type Heard struct {
	Server client.ObjectKey
	Stream string // the DeliveryStream; empty: everything, because NATS was away
}

// heardMost are waiting at a listener; more are dropped, and the resync finds what they were about.
const heardMost = 1024

// Listen returns what will be heard from now on.
func (p *Pool) Listen() <-chan event.TypedGenericEvent[Heard] {
	p.mu.Lock()
	defer p.mu.Unlock()
	ears := make(chan event.TypedGenericEvent[Heard], heardMost)
	p.ears = append(p.ears, ears)
	return ears
}

func (p *Pool) tell(h Heard) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ears := range p.ears {
		select {
		case ears <- event.TypedGenericEvent[Heard]{Object: h}:
		default:
		}
	}
}

// hear listens to JetStream, and to the connection itself: who was away may come back with nothing.
func (p *Pool) hear(ctx context.Context, f *natsStreams, server client.ObjectKey) error {
	ctx = context.WithoutCancel(ctx) // for as long as the connection lasts
	if _, err := f.Advisories(ctx, func(a fabric.Advisory) { p.tell(Heard{Server: server, Stream: a.Stream}) }); err != nil {
		return err
	}
	_, err := f.OnReconnect(func() { p.tell(Heard{Server: server}) })
	return err
}
