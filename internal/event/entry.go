package event

import (
	"errors"
	"fmt"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// ErrCatalogue is matched by the error of a catalogue that must not be started with. Its text names the event.
var ErrCatalogue = errors.New("event catalogue")

// Name is the name of an event: the last token of its subject and the kind in its reference.
type Name string

// Lane is how a fact reaches those who are not told by the local bus. An event has exactly one.
type Lane string

// The lanes.
const (
	LaneQueue     Lane = "queue"     // durable, claimed by exactly one worker
	LaneBroadcast Lane = "broadcast" // at most once, to every interested instance
	LaneLocal     Lane = "local"     // stays in the process
)

// VersionSource says where the version of an event's reference comes from. Two facts about one row must differ in it: an
// equal version is an equal digest, and the second is dropped as a copy (ruling B1).
type VersionSource string

// The sources of versions. Numbers of rows and cursors only go up, also across a failover that loses commits (ruling K1).
const (
	VersionRev    VersionSource = "the rev that take_position gave in the deciding transaction"
	VersionCursor VersionSource = "the acknowledged position, which only rises"
	VersionClock  VersionSource = "a clock in µs, read after the commit: it tells two facts of one row apart, and orders nothing"
	VersionBusSeq VersionSource = "the sequence of the bus when it was seen"
	// VersionNone is the heartbeat's alone: it carries no fact, so nothing could be taken for a copy.
	VersionNone VersionSource = "none: no fact is carried"
)

// Flag is one of an entry's two declared flags. The zero Flag is undeclared and refused at start.
type Flag struct {
	On  bool
	Why string // on: what reacts there; off: the condition that flips it
}

func on(reacts string) Flag   { return Flag{On: true, Why: reacts} }
func off(until string) Flag   { return Flag{Why: until} }
func (f Flag) declared() bool { return f.Why != "" }

// Entry is one declared event. The catalogue holds one for each, and nothing else decides how it travels.
type Entry struct {
	Name    Name
	Fact    string // the decision already taken
	Row     string // what the reference's row is
	Scope   string // what it lies within, "" if in the tenant itself
	Version VersionSource
	Lane    Lane
	Local   Flag // told to the bus of the instance that decided
	Broker  Flag // leaves the process
	Reason  string
}

// An entry is written in stages, and each stage offers only what may come next. So one that lacks its row, its version
// or its lane is no Entry and does not compile.
type (
	named     struct{ e Entry }
	placed    struct{ e Entry }
	versioned struct{ e Entry }
)

func declare(name Name, fact string) named { return named{Entry{Name: name, Fact: fact}} }

func (n named) row(what string) placed {
	n.e.Row = what
	return placed(n)
}

func (n named) rowIn(what, scope string) placed { //nolint:unparam // a channel, so far
	n.e.Row, n.e.Scope = what, scope
	return placed(n)
}

func (p placed) versionedBy(source VersionSource) versioned {
	p.e.Version = source
	return versioned(p)
}

func (v versioned) queue(reason string, local Flag) Entry {
	v.e.Lane, v.e.Reason, v.e.Local, v.e.Broker = LaneQueue, reason, local, on("the worker of the tenant's stream")
	return v.e
}

func (v versioned) broadcast(reason string, local Flag) Entry {
	v.e.Lane, v.e.Reason, v.e.Local, v.e.Broker = LaneBroadcast, reason, local, on("every other interested instance")
	return v.e
}

func (v versioned) local(reason string, broker Flag) Entry {
	v.e.Lane, v.e.Reason, v.e.Local, v.e.Broker = LaneLocal, reason, on("listeners in this process"), broker
	return v.e
}

// index checks the entries and returns them by name. Every error names its event; all are told at once.
func index(entries []Entry) (map[Name]Entry, error) {
	byName := make(map[Name]Entry, len(entries))
	var errs []error
	for _, e := range entries {
		if _, twice := byName[e.Name]; twice {
			errs = append(errs, e.wrong("is declared twice"))
		}
		byName[e.Name] = e
		errs = append(errs, e.check())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return byName, nil
}

func (e Entry) check() error {
	if err := naming.ValidKind(string(e.Name)); err != nil {
		return e.wrong("has no usable name: " + err.Error())
	}
	for _, part := range []struct {
		what  string
		given bool
	}{
		{"fact", e.Fact != ""}, {"row", e.Row != ""}, {"version source", e.Version != ""}, {"lane", e.Lane != ""},
		{"reason", e.Reason != ""}, {"local flag with its reason", e.Local.declared()},
		{"broker flag with its reason", e.Broker.declared()},
	} {
		if !part.given {
			return e.wrong("declares no " + part.what)
		}
	}
	if (e.Version == VersionNone) != (e.Name == NameHeartbeat) {
		return e.wrong("must have a version, as all but the heartbeat do")
	}
	return e.checkLane()
}

func (e Entry) checkLane() error {
	switch e.Lane {
	case LaneQueue, LaneBroadcast:
		if !e.Broker.On {
			return e.wrong("is on the " + string(e.Lane) + " lane, so its broker flag must be on")
		}
	case LaneLocal:
		if e.Broker.On || !e.Local.On {
			return e.wrong("is local, so its local flag must be on and its broker flag off")
		}
	default:
		return e.wrong("is on no known lane: " + string(e.Lane))
	}
	return nil
}

func (e Entry) wrong(what string) error { return fmt.Errorf("%w: %s %s", ErrCatalogue, e.Name, what) }
