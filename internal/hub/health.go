package hub

import "time"

// health is what the expirer has itself seen of Postgres and NATS, told by the database's clock alone: a process that was
// frozen has a clock of its own that saw no gap (D6, HealthDB).
type health struct {
	lease    time.Duration // how long without a gap before leases may be judged
	interval time.Duration // between two probes; two that are more than twice this apart are a gap
	since    time.Time     // the first probe after the last gap; zero after a failed one
	last     time.Time     // the newest good probe
}

// saw records a probe that found both well, at the database's time.
func (h *health) saw(at time.Time) {
	// A clock that went back is another server's: nothing was observed of it yet.
	gap := at.Sub(h.last) > h.fresh() || at.Before(h.last)
	if h.since.IsZero() || gap {
		h.since = at
	}
	h.last = at
}

// failed records a probe that did not find both well.
func (h *health) failed() { h.since = time.Time{} }

// fresh is how old the newest probe may be when it is acted upon.
func (h *health) fresh() time.Duration { return 2 * h.interval }

// judge returns the newest probe, and whether one whole lease of health lies before it.
func (h *health) judge() (probe time.Time, healthy bool) {
	return h.last, !h.since.IsZero() && h.last.Sub(h.since) >= h.lease
}
