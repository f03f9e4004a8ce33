package fabric

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrForeign says: a stream or consumer of that name exists and is not marked as ours.
var ErrForeign = errors.New("exists and is not ours")

// ErrImmutable says: a difference that only a new stream could cure, and the stream holds messages.
var ErrImmutable = errors.New("cannot be changed while it holds messages")

// StreamSeen is what a stream looked like just now.
type StreamSeen struct {
	Exists   bool
	Owner    string // the DeliveryStream that our mark names; empty: not ours
	Manager  string // who else says in its metadata that it manages it
	Drift    []string
	Messages uint64
	Bytes    uint64
	LastSeq  uint64
	Created  time.Time
}

// ConsumerSeen is what the durable consumer looked like just now.
type ConsumerSeen struct {
	Exists      bool
	Owner       string
	Manager     string
	Drift       []string
	Pending     uint64 // stored and not delivered yet
	AckPending  int    // delivered and unanswered
	Redelivered int
	Delivered   uint64 // highest stream sequence delivered
	// Ahead: it has delivered what the stream does not hold yet, so it waits for sequences that were taken away by a
	// restored or replaced volume, and starves meanwhile.
	Ahead bool

	fixed []string // the part of Drift that only a new consumer cures
}

// StreamPort is what the operator asks of JetStream, one step at a time: observe, compare, write a difference, look again.
// Adopt takes over what exists without our mark; without it that is ErrForeign and nothing is written.
type StreamPort interface {
	ObserveStream(ctx context.Context, spec StreamSpec) (queue, dead StreamSeen, consumer ConsumerSeen, err error)
	EnsureStream(ctx context.Context, spec StreamSpec, adopt bool) (StreamSeen, []string, error)
	EnsureDeadLetters(ctx context.Context, spec StreamSpec, adopt bool) (StreamSeen, []string, error)
	EnsureConsumer(ctx context.Context, spec StreamSpec, adopt bool) (ConsumerSeen, []string, error)
	// RemoveStream deletes the queue, its consumer and, last, the dead letters. Absent is success; foreign is ErrForeign.
	RemoveStream(ctx context.Context, name string) error
}

var _ StreamPort = (*Fabric)(nil)

// managerOf returns the value of a managed-by label in somebody's metadata, whichever prefix it has.
func managerOf(metadata map[string]string) string {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if _, name, cut := strings.Cut(key, "/"); (name == "managed-by" || !cut && key == "managed-by") && metadata[key] != "" {
			return metadata[key]
		}
	}
	return ""
}

// ObserveStream reads and writes nothing.
func (f *Fabric) ObserveStream(ctx context.Context, spec StreamSpec) (queue, dead StreamSeen, consumer ConsumerSeen, err error) {
	p, err := f.provisioner(spec)
	if err != nil {
		return queue, dead, consumer, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.PublishTimeout)
	defer cancel()
	// The consumer first: its position can then only be ahead of the stream if it really is.
	info, err := p.consumer(ctx)
	if err != nil {
		return queue, dead, consumer, fmt.Errorf("observe consumer of stream %s: %w", spec.Name, err)
	}
	if queue, _, err = p.observe(ctx, p.queue); err != nil {
		return queue, dead, consumer, fmt.Errorf("observe stream %s: %w", spec.Name, err)
	}
	if dead, _, err = p.observe(ctx, p.dead); err != nil {
		return queue, dead, consumer, fmt.Errorf("observe dead letters of stream %s: %w", spec.Name, err)
	}
	return queue, dead, p.seen(info, queue.LastSeq), nil
}

// EnsureStream makes the work queue as spec says and returns what it then sees, and which fields it wrote.
func (f *Fabric) EnsureStream(ctx context.Context, spec StreamSpec, adopt bool) (StreamSeen, []string, error) {
	p, err := f.provisioner(spec)
	if err != nil {
		return StreamSeen{}, nil, err
	}
	return p.ensure(ctx, p.queue, adopt)
}

// EnsureDeadLetters does the same for the dead-letter stream.
func (f *Fabric) EnsureDeadLetters(ctx context.Context, spec StreamSpec, adopt bool) (StreamSeen, []string, error) {
	p, err := f.provisioner(spec)
	if err != nil {
		return StreamSeen{}, nil, err
	}
	return p.ensure(ctx, p.dead, adopt)
}

// EnsureConsumer makes the durable consumer; one that is ahead of its stream is made anew.
func (f *Fabric) EnsureConsumer(ctx context.Context, spec StreamSpec, adopt bool) (ConsumerSeen, []string, error) {
	p, err := f.provisioner(spec)
	if err != nil {
		return ConsumerSeen{}, nil, err
	}
	return p.ensureConsumer(ctx, adopt)
}

// RemoveStream see StreamPort.
func (f *Fabric) RemoveStream(ctx context.Context, name string) error {
	p, err := f.provisioner(StreamSpec{Name: name})
	if err != nil {
		return err
	}
	for _, cfg := range []jetstream.StreamConfig{p.queue, p.dead} {
		seen, _, err := p.observe(ctx, cfg)
		switch {
		case err != nil:
			return fmt.Errorf("observe stream %s: %w", cfg.Name, err)
		case !seen.Exists:
			continue
		case seen.Owner != name:
			return fmt.Errorf("remove stream %s: %w", cfg.Name, ErrForeign)
		}
		p.makes(ofStream, isGone)
		if err := interpret(p.js.DeleteStream(ctx, cfg.Name)); err != nil && !errors.Is(err, ErrAbsent) {
			return fmt.Errorf("remove stream %s: %w", cfg.Name, err)
		}
	}
	return nil
}

// provisioner holds what one spec wants beside the connection that can look and write.
type provisioner struct {
	js          jetstream.JetStream
	echo        *echo
	spec        StreamSpec
	queue, dead jetstream.StreamConfig
	durable     jetstream.ConsumerConfig
	timeout     time.Duration
}

func (f *Fabric) provisioner(spec StreamSpec) (*provisioner, error) {
	spec = spec.withDefaults()
	if err := spec.check(); err != nil {
		return nil, err
	}
	_, js, _, err := f.link.current()
	if err != nil {
		return nil, err
	}
	p := &provisioner{js: js, echo: &f.echo, spec: spec, timeout: f.cfg.PublishTimeout}
	var errs [3]error
	p.queue, errs[0] = spec.queueConfig()
	p.dead, errs[1] = spec.deadConfig()
	p.durable, errs[2] = spec.consumerConfig()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return p, nil
}

// observe looks at one stream. An absent one is a fact, not an error.
func (p *provisioner) observe(ctx context.Context, want jetstream.StreamConfig) (StreamSeen, *jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	s, err := p.js.Stream(ctx, want.Name)
	if err = interpret(err); errors.Is(err, ErrAbsent) {
		return StreamSeen{}, nil, nil
	}
	if err != nil {
		return StreamSeen{}, nil, err
	}
	info := s.CachedInfo()
	seen := StreamSeen{
		Exists: true, Owner: info.Config.Metadata[metaStream], Manager: managerOf(info.Config.Metadata),
		Drift:    append(immutableDrift(info.Config, want), streamDrift(info.Config, want)...),
		Messages: info.State.Msgs, Bytes: info.State.Bytes, LastSeq: info.State.LastSeq, Created: info.Created,
	}
	return seen, info, nil
}

func (p *provisioner) ensure(ctx context.Context, want jetstream.StreamConfig, adopt bool) (StreamSeen, []string, error) {
	seen, info, err := p.observe(ctx, want)
	if err != nil {
		return seen, nil, fmt.Errorf("observe stream %s: %w", want.Name, err)
	}
	if !seen.Exists {
		return p.write(ctx, want, []string{"created"}, p.create)
	}
	if seen.Owner != p.spec.Name && !adopt {
		return seen, nil, fmt.Errorf("ensure stream %s: %w", want.Name, ErrForeign)
	}
	if fixed := immutableDrift(info.Config, want); len(fixed) > 0 {
		if seen.Messages > 0 || seen.Owner != p.spec.Name { // what is taken over is not made anew
			return seen, nil, fmt.Errorf("ensure stream %s: %w: %s", want.Name, ErrImmutable, strings.Join(fixed, ", "))
		}
		return p.write(ctx, want, fixed, p.recreate)
	}
	if len(seen.Drift) == 0 {
		return seen, nil, nil
	}
	return p.write(ctx, overlayStream(info.Config, want), seen.Drift, p.update)
}

// write performs one change and returns what is then seen.
func (p *provisioner) write(
	ctx context.Context, cfg jetstream.StreamConfig, fields []string, do func(context.Context, jetstream.StreamConfig) error,
) (StreamSeen, []string, error) {
	wctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if err := interpret(do(wctx, cfg)); err != nil {
		return StreamSeen{}, nil, fmt.Errorf("write stream %s: %w", cfg.Name, err)
	}
	seen, _, err := p.observe(ctx, cfg)
	if err != nil {
		return seen, fields, fmt.Errorf("read back stream %s: %w", cfg.Name, err)
	}
	return seen, fields, nil
}

// makes is said before a change, so that word of it is known to be of our own.
func (p *provisioner) makes(what, change string) {
	p.echo.expect(Advisory{Stream: p.spec.Name, Change: change, What: what})
}

func (p *provisioner) create(ctx context.Context, cfg jetstream.StreamConfig) error {
	p.makes(ofStream, isCreated)
	_, err := p.js.CreateStream(ctx, cfg)
	return err
}

func (p *provisioner) update(ctx context.Context, cfg jetstream.StreamConfig) error {
	p.makes(ofStream, isUpdated)
	_, err := p.js.UpdateStream(ctx, cfg)
	return err
}

func (p *provisioner) recreate(ctx context.Context, cfg jetstream.StreamConfig) error {
	p.makes(ofStream, isGone)
	if err := p.js.DeleteStream(ctx, cfg.Name); err != nil {
		return err
	}
	return p.create(ctx, cfg)
}

// consumer looks at the durable consumer; nil if it or its stream is absent.
func (p *provisioner) consumer(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	c, err := p.js.Consumer(ctx, p.queue.Name, p.durable.Durable)
	if err = interpret(err); errors.Is(err, ErrAbsent) {
		return nil, nil //nolint:nilnil // absent is a fact of the observation
	}
	if err != nil {
		return nil, err
	}
	return c.CachedInfo(), nil
}

func (p *provisioner) seen(info *jetstream.ConsumerInfo, lastSeq uint64) ConsumerSeen {
	if info == nil {
		return ConsumerSeen{}
	}
	fixed := immutableConsumer(info.Config, p.durable)
	return ConsumerSeen{
		Exists: true, Owner: info.Config.Metadata[metaStream], Manager: managerOf(info.Config.Metadata),
		fixed: fixed, Drift: append(slices.Clone(fixed), consumerDrift(info.Config, p.durable)...),
		Pending: info.NumPending, AckPending: info.NumAckPending, Redelivered: info.NumRedelivered,
		Delivered: info.Delivered.Stream, Ahead: info.Delivered.Stream > lastSeq,
	}
}

// look reads consumer and stream, in the order that makes Ahead true only when it is.
func (p *provisioner) look(ctx context.Context) (*jetstream.ConsumerInfo, ConsumerSeen, StreamSeen, error) {
	info, err := p.consumer(ctx)
	if err != nil {
		return nil, ConsumerSeen{}, StreamSeen{}, fmt.Errorf("observe consumer of stream %s: %w", p.spec.Name, err)
	}
	queue, _, err := p.observe(ctx, p.queue)
	if err != nil {
		return nil, ConsumerSeen{}, queue, fmt.Errorf("observe stream %s: %w", p.spec.Name, err)
	}
	return info, p.seen(info, queue.LastSeq), queue, nil
}

func (p *provisioner) ensureConsumer(ctx context.Context, adopt bool) (ConsumerSeen, []string, error) {
	info, seen, _, err := p.look(ctx)
	if err != nil {
		return seen, nil, err
	}
	var wrote []string
	cfg, anew := p.durable, false
	switch fixed := seen.fixed; {
	case !seen.Exists:
		wrote = []string{"created"}
	case seen.Owner != p.spec.Name && !adopt:
		return seen, nil, fmt.Errorf("ensure consumer of stream %s: %w", p.spec.Name, ErrForeign)
	case seen.Ahead:
		wrote, anew = []string{"ahead"}, true
	case len(fixed) > 0:
		wrote, anew = fixed, true
	case len(seen.Drift) == 0:
		return seen, nil, nil
	default:
		cfg, wrote = overlayConsumer(info.Config, p.durable), seen.Drift
	}
	if err := p.putConsumer(ctx, cfg, seen.Exists, anew); err != nil {
		return seen, nil, fmt.Errorf("write consumer of stream %s: %w", p.spec.Name, err)
	}
	_, seen, _, err = p.look(ctx)
	return seen, wrote, err
}

func (p *provisioner) putConsumer(ctx context.Context, cfg jetstream.ConsumerConfig, exists, anew bool) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	change := isCreated
	if exists && !anew {
		change = isUpdated
	}
	p.makes(ofConsumer, change)
	if anew {
		p.makes(ofConsumer, isGone)
		if err := interpret(p.js.DeleteConsumer(ctx, p.queue.Name, p.durable.Durable)); err != nil && !errors.Is(err, ErrAbsent) {
			return err
		}
	}
	_, err := p.js.CreateOrUpdateConsumer(ctx, p.queue.Name, cfg)
	return interpret(err)
}
