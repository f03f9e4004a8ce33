package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

// EnsureStream makes the work queue as spec has it.
func (p *Pool) EnsureStream(ctx context.Context, at Place, spec fabric.StreamSpec, adopt v1alpha1.AdoptionPolicy) (seen fabric.StreamSeen, err error) {
	err = p.jetStream(ctx, at, spec, adopt, jetStreamPart{
		what: "stream",
		look: func(o observed) found { return foundStream(o.queue) },
		ensure: func(f *natsStreams, adopt bool) (wrote []string, err error) {
			seen, wrote, err = f.EnsureStream(ctx, spec, adopt)
			return wrote, err
		},
	})
	return seen, err
}

// EnsureDeadLetters makes the dead-letter stream.
func (p *Pool) EnsureDeadLetters(ctx context.Context, at Place, spec fabric.StreamSpec, adopt v1alpha1.AdoptionPolicy) (seen fabric.StreamSeen, err error) {
	err = p.jetStream(ctx, at, spec, adopt, jetStreamPart{
		what: "dead letters",
		look: func(o observed) found { return foundStream(o.dead) },
		ensure: func(f *natsStreams, adopt bool) (wrote []string, err error) {
			seen, wrote, err = f.EnsureDeadLetters(ctx, spec, adopt)
			return wrote, err
		},
	})
	return seen, err
}

// EnsureConsumer makes the durable consumer.
func (p *Pool) EnsureConsumer(ctx context.Context, at Place, spec fabric.StreamSpec, adopt v1alpha1.AdoptionPolicy) (seen fabric.ConsumerSeen, err error) {
	err = p.jetStream(ctx, at, spec, adopt, jetStreamPart{
		what: "consumer",
		look: func(o observed) found {
			c := o.consumer
			return found{whole: c.Exists && !c.Ahead, owner: c.Owner, manager: c.Manager, drift: c.Drift}
		},
		ensure: func(f *natsStreams, adopt bool) (wrote []string, err error) {
			seen, wrote, err = f.EnsureConsumer(ctx, spec, adopt)
			return wrote, err
		},
	})
	return seen, err
}

// observed is all that a DeliveryStream has in JetStream.
type observed struct {
	queue, dead fabric.StreamSeen
	consumer    fabric.ConsumerSeen
}

// found is one of the three as it is there.
type found struct {
	whole          bool   // there, and able to work
	owner, manager string // whose mark it has, ours and others'
	drift          []string
}

func foundStream(s fabric.StreamSeen) found {
	return found{whole: s.Exists, owner: s.Owner, manager: s.Manager, drift: s.Drift}
}

// jetStreamPart is one of the three.
type jetStreamPart struct {
	what   string
	look   func(observed) found
	ensure func(f *natsStreams, adopt bool) (wrote []string, err error)
}

// jetStream makes one part as it should be, or only looks, where drift is to be reported.
func (p *Pool) jetStream(ctx context.Context, at Place, spec fabric.StreamSpec, policy v1alpha1.AdoptionPolicy, part jetStreamPart) error {
	f, err := p.streams(ctx, at)
	if err != nil {
		return err
	}
	what := "the JetStream " + part.what + " of " + spec.Name
	look := func() (is found, err error) {
		var o observed
		if o.queue, o.dead, o.consumer, err = f.ObserveStream(ctx, spec); err != nil {
			return is, at.interpretNATS(err)
		}
		return part.look(o), nil
	}
	if at.Drift.Reporting() {
		switch is, err := look(); {
		case err != nil:
			return err
		case !is.whole:
			return at.Drift.Allow(what, "removed")
		case len(is.drift) > 0:
			return at.Drift.Allow(what, is.drift...)
		}
	}
	wrote, err := part.ensure(f, false)
	if errors.Is(err, fabric.ErrForeign) {
		is, err := look()
		if err == nil {
			err = is.mayBeTaken(what, spec.Name, policy)
		}
		if err != nil {
			return err
		}
		wrote, err = part.ensure(f, true)
		if err != nil {
			return at.interpretNATS(err)
		}
		p.log.InfoContext(ctx, "Took over what was in JetStream", "server", at.Server.String(), "stream", spec.Name, "what", part.what, "fields", wrote)
		return nil
	}
	if len(wrote) > 0 {
		p.log.InfoContext(ctx, "Changed JetStream", "server", at.Server.String(), "stream", spec.Name, "what", part.what, "fields", wrote)
		at.Drift.Wrote(what, wrote...)
	}
	return at.interpretNATS(err)
}

// mayBeTaken says whose it is and what would be changed, before anything is.
func (is found) mayBeTaken(what, stream string, policy v1alpha1.AdoptionPolicy) error {
	owned := is.manager
	if is.owner != "" && is.owner != stream {
		owned = "DeliveryStream " + is.owner
	}
	differs := "; all else is as wanted"
	if len(is.drift) > 0 {
		differs = "; to be changed are " + strings.Join(is.drift, ", ")
	}
	switch {
	case policy == v1alpha1.AdoptionForce, policy == v1alpha1.AdoptionIfUnowned && owned == "":
		return nil
	case owned != "":
		return fault.Waiting(v1alpha1.ReasonObjectConflict, fmt.Sprintf("%s exists and is managed by %s: take that mark off it and set "+
			"spec.adoptionPolicy to IfUnowned, or set that to Force, to take it over%s", what, owned, differs))
	}
	return fault.Waiting(v1alpha1.ReasonObjectConflict, fmt.Sprintf("%s exists and is not ours: rename or remove it in NATS, or set "+
		"spec.adoptionPolicy to IfUnowned to take it over%s", what, differs))
}
