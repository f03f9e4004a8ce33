package backend

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// Heard is word from outside that something of a CompassServer may have changed. It is a hint: whoever hears it looks.
type Heard struct {
	Server client.ObjectKey
	Stream string // the DeliveryStream; empty: everything, because NATS was away
	Tenant string // id of the one whose move has ended; empty: none
	Slug   string // of the tenant that has another stream; empty: none
	Lost   bool   // NATS is away, or lets us in no more: only its own accounts can be looked at
}

// askEvery is how often a connection is asked whether it is there. A NATS that came back without our accounts refuses it, so
// that no reconnect would ever be heard.
const askEvery = 5 * time.Second

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

// hear listens to JetStream, and to the connection itself: who was away may come back with nothing. It ends with stop.
func (p *Pool) hear(ctx context.Context, f *natsStreams, server client.ObjectKey) (stop func(), err error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // for as long as the connection lasts
	if _, err = f.Advisories(ctx, func(a fabric.Advisory) { p.tell(Heard{Server: server, Stream: a.Stream}) }); err == nil {
		_, err = f.OnReconnect(func() { p.tell(Heard{Server: server}) })
	}
	if err != nil {
		cancel()
		return nil, err
	}
	go p.ask(ctx, f.Connected, server)
	return cancel, nil
}

func (p *Pool) ask(ctx context.Context, connected func() bool, server client.ObjectKey) {
	every := time.NewTicker(askEvery) //nolint:forbidigo // paces a look at a live connection; nothing is decided by it
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			if !connected() {
				p.tell(Heard{Server: server, Lost: true})
			}
		}
	}
}
