package listener

import "tree/internal/event"

type place struct{ head int64 }

// follower looks up what concerns it, gathers what to read, and tells kinds apart: that judges no copy.
type follower struct {
	channels map[string]*place
	dirty    map[string]bool
}

func (f *follower) mark(events []event.Event) {
	for _, e := range events {
		if e.Kind == "heartbeat" {
			continue
		}
		if f.channels[e.Scope] == nil {
			continue
		}
		if e.Version == 0 {
			continue
		}
		f.dirty[e.Scope] = true
		f.channels[e.Scope].head = max(f.channels[e.Scope].head, e.Version)
		if e.Version > f.channels[e.Scope].head {
			f.dirty[e.RowID] = true
		}
	}
}
