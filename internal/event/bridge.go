package event

import (
	"errors"
	"fmt"
	"time"
)

// Bounds of the claims.
const (
	// MaxClaimTTL is the longest that a digest is remembered (ruling B1).
	MaxClaimTTL = 2 * time.Minute
	// DefaultClaims is how many digests are remembered unless said otherwise; at that count the oldest is forgotten first.
	DefaultClaims = 1 << 16
)

// Outcome is what a bridge did with something that arrived.
type Outcome string

// The outcomes.
const (
	OutcomeEmitted   Outcome = "emitted"   // told to the bus, once
	OutcomeOwn       Outcome = "own"       // this instance's echo; it was told when it was decided
	OutcomeHeartbeat Outcome = "heartbeat" // another instance is there; nothing to tell
	OutcomeDuplicate Outcome = "duplicate" // its digest is claimed
	OutcomeRefused   Outcome = "refused"   // no envelope of ours
	OutcomeFailed    Outcome = "failed"    // the bus did not take it; the claim was given back
)

// Received is one broadcast as it came. Tenant and Event are what its subject says, which the broker vouches for.
type Received struct {
	Tenant   string
	Event    string
	Envelope []byte
}

// BridgeOptions are the parts of a bridge. Instance, Bus and Now are required.
type BridgeOptions struct {
	Instance Instance
	Bus      *Bus
	Now      func() time.Time
	ClaimTTL time.Duration                 // 0: MaxClaimTTL, which is also the most
	Claims   int                           // 0: DefaultClaims
	Observe  func(event string, o Outcome) // optional; for metrics. The event is as the subject says
}

// Bridge turns broadcasts of other instances into local facts, each once. It is safe for concurrent use.
type Bridge struct {
	instance Instance
	byName   map[Name]Entry
	local    local
	claims   *claims
	observe  func(string, Outcome)
}

// local is where a fact becomes a consequence in this process.
type local interface {
	emit(ref Ref) error
}

// NewBridge returns a bridge. It fails if an option or the catalogue is not complete.
func NewBridge(o BridgeOptions) (*Bridge, error) {
	if o.Instance.id == "" || o.Bus == nil || o.Now == nil {
		return nil, errors.New("event bridge: instance, bus and clock are required")
	}
	if o.ClaimTTL < 0 || o.ClaimTTL > MaxClaimTTL || o.Claims < 0 {
		return nil, fmt.Errorf("event bridge: claims of %v and %d: at most %v, and no negative count", o.ClaimTTL, o.Claims, MaxClaimTTL)
	}
	if o.ClaimTTL == 0 {
		o.ClaimTTL = MaxClaimTTL
	}
	if o.Claims == 0 {
		o.Claims = DefaultClaims
	}
	if o.Observe == nil {
		o.Observe = func(string, Outcome) {}
	}
	byName, err := index(Catalogue())
	if err != nil {
		return nil, err
	}
	return &Bridge{
		instance: o.Instance, byName: byName, local: o.Bus, claims: newClaims(o.Now, o.ClaimTTL, o.Claims), observe: o.Observe,
	}, nil
}

// Receive handles one broadcast. The order of its steps is the law (DELIVERY-3, DELIVERY-4; REQ-142, REQ-143): own echo,
// heartbeat, digest read and claimed, local emit. The error is for the log: ErrEnvelope for what was refused, ErrClosed if
// the bus is closed; nothing is to be done about either.
func (b *Bridge) Receive(r Received) error {
	envelope, err := b.open(r)
	if err != nil {
		b.observe(r.Event, OutcomeRefused)
		return err
	}
	// By producer, never by subject: a subject names a tenant and an event, so it equals no instance's id, and a guard that
	// compares it drops nothing while it looks as if it did.
	if envelope.producer == b.instance.id {
		b.observe(r.Event, OutcomeOwn)
		return nil
	}
	digest, carriesFact := envelope.Digest()
	if !carriesFact {
		b.observe(r.Event, OutcomeHeartbeat)
		return nil
	}
	if !b.claims.take(digest) {
		b.observe(r.Event, OutcomeDuplicate)
		return nil
	}
	return b.emit(envelope, digest)
}

// open parses the envelope and holds it against the subject that it came on.
func (b *Bridge) open(r Received) (Envelope, error) {
	envelope, err := decode(r.Envelope, b.byName)
	if err != nil {
		return Envelope{}, err
	}
	if envelope.ref.Tenant != r.Tenant || string(envelope.ref.Kind) != r.Event {
		return Envelope{}, fmt.Errorf("%w: it speaks of another tenant or event than the subject it came on", ErrEnvelope)
	}
	return envelope, nil
}

// emit tells the bus, with the claim held; it is given back unless the bus took the fact, also if that panics.
func (b *Bridge) emit(envelope Envelope, digest Digest) error {
	outcome := OutcomeFailed
	defer func() {
		if outcome == OutcomeFailed {
			b.claims.release(digest)
		}
		b.observe(string(envelope.ref.Kind), outcome)
	}()
	if err := b.local.emit(envelope.ref); err != nil {
		return fmt.Errorf("tell the bus of %s: %w", envelope.ref.Kind, err)
	}
	outcome = OutcomeEmitted
	return nil
}
