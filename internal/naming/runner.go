package naming

import "strings"

// RunnerLeg is one of the fixed conversations with a Runner. The fourth, its state, also names a stream.
type RunnerLeg string

// The legs, and who sends on each.
const (
	RunnerCmd    RunnerLeg = "cmd"    // platform to Runner, one-way
	RunnerEvents RunnerLeg = "events" // Runner to a Server, answered after commit
	RunnerCall   RunnerLeg = "call"   // Runner to a Server, request and reply
	RunnerState  RunnerLeg = "state"  // Runner to the worker of one stream, one-way
)

// RunnerTag is the key of the user JWT tag that the permission template is filled from.
const RunnerTag = "id"

const (
	runnerTemplate    = "{{tag(" + RunnerTag + ")}}"
	runnerInboxPrefix = "_INBOX_r."
)

// RunnerAddress is what a Runner subject says. Fleet is empty in the Runner's own view; Stream is set for RunnerState
// alone.
type RunnerAddress struct {
	Fleet  string
	ID     string
	Leg    RunnerLeg
	Stream string
}

// RunnerSubject returns the subject as the platform sees it: compass.runner.<fleet>.<id>.{cmd,events,call,state.<stream>}.
func RunnerSubject(a RunnerAddress) (string, error) {
	if err := firstError(ValidFleet(a.Fleet), a.valid()); err != nil {
		return "", err
	}
	return runnerRoot + a.Fleet + "." + a.ID + "." + a.tail(), nil
}

// RunnerOwnSubject returns the subject as the Runner itself sees it: compass.runner.<id>.…. The account import adds the
// fleet, so nobody speaks as another (ruling R1). a.Fleet is ignored.
func RunnerOwnSubject(a RunnerAddress) (string, error) {
	if err := a.valid(); err != nil {
		return "", err
	}
	return runnerRoot + a.ID + "." + a.tail(), nil
}

// RunnerFilter matches one leg of every Runner of every fleet, as the platform sees it; for RunnerState, of every stream.
func RunnerFilter(leg RunnerLeg) (string, error) { return runnerPattern("*.*.", leg) }

// RunnerFleetFilter matches one leg of every Runner of one fleet, as the platform sees it: the far side of an import.
func RunnerFleetFilter(fleet string, leg RunnerLeg) (string, error) {
	if err := ValidFleet(fleet); err != nil {
		return "", err
	}
	return runnerPattern(fleet+".*.", leg)
}

// RunnerOwnFilter matches one leg of every Runner of the account, as Runners see it: the near side of an import.
func RunnerOwnFilter(leg RunnerLeg) (string, error) { return runnerPattern("*.", leg) }

// RunnerTemplate is the permission of a scoped signing key: the NATS server fills in the tag of the user's JWT.
func RunnerTemplate(leg RunnerLeg) (string, error) { return runnerPattern(runnerTemplate+".", leg) }

// RunnerStateFilter matches what every Runner tells the worker of one stream.
func RunnerStateFilter(stream string) (string, error) {
	if err := ValidName(stream); err != nil {
		return "", err
	}
	return runnerRoot + "*.*.state." + stream, nil
}

// RunnerInbox is the prefix of a Runner's reply subjects; no other Runner may subscribe below it.
func RunnerInbox(id string) (string, error) {
	if err := ValidRunnerID(id); err != nil {
		return "", err
	}
	return runnerInboxPrefix + id, nil
}

// RunnerInboxTemplate is the permission that belongs to RunnerInbox, for a scoped signing key.
func RunnerInboxTemplate() string { return runnerInboxPrefix + runnerTemplate + ".>" }

// ParseRunnerSubject is the inverse of RunnerSubject.
func ParseRunnerSubject(s string) (RunnerAddress, error) {
	p := strings.Split(s, ".")
	if len(p) >= 5 && p[0] == root && p[1] == "runner" {
		a := RunnerAddress{Fleet: p[2], ID: p[3], Leg: RunnerLeg(p[4]), Stream: strings.Join(p[5:], ".")}
		if again, err := RunnerSubject(a); err == nil && again == s {
			return a, nil
		}
	}
	return RunnerAddress{}, refuse("runner subject", s, "compass.runner.<fleet>.<id>.{cmd,events,call,state.<stream>}")
}

// ParseRunnerOwnSubject is the inverse of RunnerOwnSubject.
func ParseRunnerOwnSubject(s string) (RunnerAddress, error) {
	p := strings.Split(s, ".")
	if len(p) >= 4 && p[0] == root && p[1] == "runner" {
		a := RunnerAddress{ID: p[2], Leg: RunnerLeg(p[3]), Stream: strings.Join(p[4:], ".")}
		if again, err := RunnerOwnSubject(a); err == nil && again == s {
			return a, nil
		}
	}
	return RunnerAddress{}, refuse("runner subject", s, "compass.runner.<id>.{cmd,events,call,state.<stream>}")
}

func (a RunnerAddress) valid() error {
	if err := firstError(ValidRunnerID(a.ID), validLeg(a.Leg)); err != nil {
		return err
	}
	if a.Leg == RunnerState {
		return ValidName(a.Stream)
	}
	if a.Stream != "" {
		return refuse("stream of a runner subject", a.Stream, "none, except with state")
	}
	return nil
}

func (a RunnerAddress) tail() string {
	if a.Leg == RunnerState {
		return string(RunnerState) + "." + a.Stream
	}
	return string(a.Leg)
}

func runnerPattern(middle string, leg RunnerLeg) (string, error) {
	if err := validLeg(leg); err != nil {
		return "", err
	}
	s := runnerRoot + middle + string(leg)
	if leg == RunnerState {
		s += ".*"
	}
	return s, nil
}

func validLeg(leg RunnerLeg) error {
	switch leg {
	case RunnerCmd, RunnerEvents, RunnerCall, RunnerState:
		return nil
	}
	return refuse("runner leg", string(leg), "cmd, events, call or state")
}
