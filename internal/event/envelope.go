package event

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// ErrEnvelope is matched by the error of what arrived and is no envelope of ours.
var ErrEnvelope = errors.New("envelope refused")

// maxEnvelope bounds what is parsed; a reference is a few hundred bytes.
const maxEnvelope = 4 << 10

// Instance is the identity of one process: the producer of every envelope it makes. One value is shared by its Emitter
// and its Bridge.
type Instance struct{ id string }

// NewInstance takes an id made by naming.IDs.Instance.
func NewInstance(id string) (Instance, error) {
	if err := naming.ValidID(naming.InstancePrefix, id); err != nil {
		return Instance{}, fmt.Errorf("instance: %w", err)
	}
	return Instance{id: id}, nil
}

// ID returns the id.
func (i Instance) ID() string { return i.id }

// Digest tells two envelopes of one fact from two facts.
type Digest string

// Envelope is what travels on the broadcast lane: who produced it, the digest of what it says, and the reference with its
// version; never a row (REQ-140). Only seal and Decode make one.
type Envelope struct {
	producer string
	digest   *Digest // nil for the heartbeat alone
	ref      Ref
}

// Producer returns the id of the instance that made the envelope.
func (e Envelope) Producer() string { return e.producer }

// Digest returns the digest; a heartbeat, which carries no fact, has none.
func (e Envelope) Digest() (Digest, bool) {
	if e.digest == nil {
		return "", false
	}
	return *e.digest, true
}

// Ref returns what the fact is about, with its version.
func (e Envelope) Ref() Ref { return e.ref }

// wireEnvelope is the JSON of an envelope.
type wireEnvelope struct {
	Producer string  `json:"producer"`
	Digest   *Digest `json:"digest,omitempty"`
	Ref      Ref     `json:"ref"`
	Version  int64   `json:"version,omitempty"`
}

// seal is the one factory of envelopes (DELIVERY-1): the producer is the instance, the digest is of the payload.
func seal(by Instance, ref Ref) Envelope {
	e := Envelope{producer: by.id, ref: ref}
	if ref.Kind != NameHeartbeat {
		d := digestOf(ref)
		e.digest = &d
	}
	return e
}

// digestOf hashes the reference and its version: two edits of one row differ, two copies of one do not, and no tenant's
// fact equals another's. The subject has no part in it. Lengths keep neighbouring parts apart.
func digestOf(ref Ref) Digest {
	h := sha256.New()
	for _, part := range []string{ref.Tenant, string(ref.Kind), ref.RowID, ref.Scope, strconv.FormatInt(ref.Version, 10)} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	return Digest(hex.EncodeToString(h.Sum(nil)))
}

func (e Envelope) encode() ([]byte, error) {
	b, err := json.Marshal(wireEnvelope{Producer: e.producer, Digest: e.digest, Ref: e.ref, Version: e.ref.Version})
	if err != nil {
		return nil, fmt.Errorf("encode envelope: %w", err)
	}
	return b, nil
}

// header says the same to those who look at the broker and parse no body. Nothing of ours reads it.
func (e Envelope) header() map[string]string {
	h := map[string]string{naming.HeaderProducer: e.producer, naming.HeaderTenant: e.ref.Tenant}
	if d, ok := e.Digest(); ok {
		h[naming.HeaderDigest] = string(d)
		h[naming.HeaderVersion] = strconv.FormatInt(e.ref.Version, 10)
	}
	return h
}

// Decode reads an envelope and refuses, with ErrEnvelope, one that no instance of ours makes: too long, of an event that
// is not declared as a broadcast, with ids that are none, or with a digest that is not of its payload, which could claim
// another fact's place. Fields it does not know are a newer version's and are ignored.
func Decode(b []byte) (Envelope, error) {
	byName, err := index(Catalogue())
	if err != nil {
		return Envelope{}, err
	}
	return decode(b, byName)
}

func decode(b []byte, byName map[Name]Entry) (Envelope, error) {
	if len(b) > maxEnvelope {
		return Envelope{}, fmt.Errorf("%w: %d bytes, at most %d are taken", ErrEnvelope, len(b), maxEnvelope)
	}
	var w wireEnvelope
	if err := json.Unmarshal(b, &w); err != nil {
		return Envelope{}, fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	w.Ref.Version = w.Version
	entry, declared := byName[w.Ref.Kind]
	if !declared || entry.Lane != LaneBroadcast {
		return Envelope{}, fmt.Errorf("%w: %.64q is no broadcast that this version knows", ErrEnvelope, w.Ref.Kind)
	}
	if err := w.Ref.check(entry); err != nil {
		return Envelope{}, fmt.Errorf("%w: %w", ErrEnvelope, err)
	}
	if err := naming.ValidID(naming.InstancePrefix, w.Producer); err != nil {
		return Envelope{}, fmt.Errorf("%w: producer: %w", ErrEnvelope, err)
	}
	e := Envelope{producer: w.Producer, digest: w.Digest, ref: w.Ref}
	want, has := seal(Instance{w.Producer}, w.Ref).Digest()
	if got, ok := e.Digest(); ok != has || got != want {
		return Envelope{}, fmt.Errorf("%w: %s: digest is not of the payload", ErrEnvelope, entry.Name)
	}
	return e, nil
}
