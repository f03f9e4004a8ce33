package event

import (
	"errors"
	"strings"
	"testing"
)

// facts makes one fact of every kind.
func facts() []Fact {
	return []Fact{
		MessagePosted(acme, chanA, msgA, 1), MessageVisible(acme, chanA, msgA, 1), MessageUpdated(acme, chanA, msgA, 1),
		ChannelChanged(acme, chanA, 1), AgentWorkspaceChanged(acme, agent, 1), TopicUpserted(acme, chanA, "topic", 1),
		BindingChanged(acme, agent, 1), CursorMoved(acme, chanA, agent, 1), PlacementChanged(acme, 1),
		PresenceChanged(acme, agent, 1), AccessChanged(acme, agent, 1), Heartbeat(acme), ClientLagged(acme, "n_06f0e5k3vdrg0000000000000g", 1),
	}
}

// Holds REQ-141 and REQ-015 as amended: every event is declared once, completely, and every constructor is declared.
func TestCatalogue(t *testing.T) {
	t.Parallel()
	byName, err := index(Catalogue())
	if err != nil {
		t.Fatal(err)
	}
	made := map[Name]bool{}
	for _, f := range facts() {
		name := f.Ref().Kind
		made[name] = true
		if entry, ok := byName[name]; !ok {
			t.Errorf("%s has a constructor and no entry", name)
		} else if err := f.Ref().check(entry); err != nil {
			t.Errorf("constructor and entry disagree: %v", err)
		}
	}
	for name := range byName {
		if !made[name] {
			t.Errorf("%s has an entry and no constructor", name)
		}
	}
	for _, name := range []Name{
		NameMessageUpdated, NameChannelChanged, NameAgentWorkspaceChanged, NameTopicUpserted, NameMessageVisible,
		NamePresenceChanged, NameAccessChanged, NameBindingChanged, NameCursorMoved, NamePlacementChanged,
	} {
		if e := byName[name]; e.Lane != LaneBroadcast || !e.Local.On || !e.Broker.On {
			t.Errorf("%s: lane %s, local %v, broker %v; want a broadcast that is told here too", name, e.Lane, e.Local.On, e.Broker.On)
		}
	}
}

// Holds REQ-017: no process takes one fact from both lanes, because a queue event is not told to the bus.
func TestQueueFactsStayOffTheBus(t *testing.T) {
	t.Parallel()
	for _, e := range Catalogue() {
		if e.Lane == LaneQueue && e.Local.On {
			t.Errorf("%s is claimed from the queue and told to the bus", e.Name)
		}
	}
}

// Holds REQ-141: what compiles and is still not whole is refused at start, by name.
func TestIncompleteEntryIsNamed(t *testing.T) {
	t.Parallel()
	whole := func() Entry {
		return declare("thing_done", "f").row("thing").versionedBy(VersionClock).broadcast("r", on("here"))
	}
	tests := map[string]struct {
		spoil func(*Entry)
		says  string
	}{
		"no name":               {func(e *Entry) { e.Name = "" }, "name"},
		"name with a dot":       {func(e *Entry) { e.Name = "thing.done" }, "thing.done"},
		"no fact":               {func(e *Entry) { e.Fact = "" }, "fact"},
		"no row":                {func(e *Entry) { e.Row = "" }, "row"},
		"no version":            {func(e *Entry) { e.Version = "" }, "version"},
		"version none":          {func(e *Entry) { e.Version = VersionNone }, "version"},
		"no lane":               {func(e *Entry) { e.Lane = "" }, "lane"},
		"unknown lane":          {func(e *Entry) { e.Lane = "pigeon" }, "pigeon"},
		"no reason":             {func(e *Entry) { e.Reason = "" }, "reason"},
		"local flag undeclared": {func(e *Entry) { e.Local = Flag{} }, "local flag"},
		"local off, no reason":  {func(e *Entry) { e.Local = off("") }, "local flag"},
		"broker undeclared":     {func(e *Entry) { e.Broker = Flag{} }, "broker flag"},
		"broadcast stays":       {func(e *Entry) { e.Broker = off("x") }, "broker flag"},
		"queue stays":           {func(e *Entry) { e.Lane, e.Broker = LaneQueue, off("x") }, "broker flag"},
		"local leaves":          {func(e *Entry) { e.Lane = LaneLocal }, "broker flag off"},
		"local goes nowhere":    {func(e *Entry) { e.Lane, e.Broker, e.Local = LaneLocal, off("x"), off("y") }, "local flag"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := whole()
			tt.spoil(&e)
			_, err := index([]Entry{whole0(), e})
			wantErr(t, err, ErrCatalogue)
			if !strings.Contains(err.Error(), string(e.Name)) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error %q does not name %s and %s", err, e.Name, tt.says)
			}
		})
	}
	if _, err := index([]Entry{whole(), whole()}); !errors.Is(err, ErrCatalogue) || !strings.Contains(err.Error(), "twice") {
		t.Errorf("declared twice: %v", err)
	}
	if _, err := index([]Entry{whole()}); err != nil {
		t.Errorf("the whole one is refused: %v", err)
	}
}

func whole0() Entry {
	return declare("zero_done", "f").row("thing").versionedBy(VersionClock).broadcast("r", on("here"))
}

func TestHeartbeatAloneHasNoVersion(t *testing.T) {
	t.Parallel()
	for _, e := range Catalogue() {
		if (e.Version == VersionNone) != (e.Name == NameHeartbeat) {
			t.Errorf("%s: version from %q", e.Name, e.Version)
		}
	}
	beat := declare(NameHeartbeat, "f").row("tenant").versionedBy(VersionClock).broadcast("r", off("never"))
	if _, err := index([]Entry{beat}); !errors.Is(err, ErrCatalogue) {
		t.Errorf("a heartbeat with a version: %v", err)
	}
}
