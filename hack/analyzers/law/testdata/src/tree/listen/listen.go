package listen

import (
	"slices"

	"tree/internal/event"
)

// DELIVERY-4: listeners that judge copies by themselves.
type bySet struct{ seen map[string]bool }

func (l *bySet) hear(e event.Event) {
	if l.seen[e.RowID] { // want `passed over for what was told before`
		return
	}
	l.seen[e.RowID] = true
}

type byOK struct{ seen map[string]struct{} }

func (l *byOK) hear(events []event.Event) {
	for _, e := range events {
		if _, ok := l.seen[e.Tenant+e.RowID]; ok { // want `passed over for what was told before`
			continue
		}
		l.seen[e.Tenant+e.RowID] = struct{}{}
	}
}

type byVersion struct{ last map[string]int64 }

func (l *byVersion) hear(e event.Event) {
	if e.Version <= l.last[e.RowID] { // want `passed over for what was told before`
		return
	}
	l.last[e.RowID] = e.Version
}

type bySeq struct{ last uint64 }

func (l *bySeq) hear(e event.Event) {
	if l.last >= e.Seq { // want `passed over for what was told before`
		return
	}
	l.last = e.Seq
}

type byFact struct {
	seen map[event.Ref]bool // want `a memory of facts`
	also map[key]int        // want `a memory of facts`
	list []event.Ref
}

type key struct {
	who string
	ref event.Ref
}

func (l *byFact) hear(e event.Event) {
	if slices.Contains(l.list, e.Ref) { // want `passed over for what was told before`
		return
	}
}

type byDigest struct{ last event.Digest } // want `Digest is the bridge's`

func open(b []byte) {
	_, _ = event.Decode(b) // want `envelopes are opened by the bridge`
}
