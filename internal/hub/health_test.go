package hub

import (
	"testing"
	"time"
)

// Holds REQ-230: health is one whole lease of good probes without a gap, by the clock that the probes bring (HealthDB).
func TestHealth(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_000_000, 0)
	const failed = -1
	steady := func(from, to int) (at []int) {
		for s := from; s <= to; s += 3 {
			at = append(at, s)
		}
		return at
	}
	cases := map[string]struct {
		probes []int // seconds since start; failed
		want   bool
	}{
		"nothing seen":               {nil, false},
		"a moment":                   {[]int{0}, false},
		"just under a lease":         {steady(0, 29), false},
		"one lease":                  {steady(0, 30), true},
		"a failure and less":         {append(append(steady(0, 60), failed), steady(63, 90)...), false},
		"a failure and a lease":      {append(append(steady(0, 60), failed), steady(63, 93)...), true},
		"a failure now":              {append(steady(0, 60), failed), false},
		"a gap":                      {append(steady(0, 60), steady(67, 94)...), false},
		"two intervals are no gap":   {append(steady(0, 30), 36), true},
		"frozen for long":            {append(steady(0, 60), 600), false},
		"a clock that went back":     {append(steady(100, 160), steady(99, 126)...), false},
		"and is watched for a lease": {append(steady(100, 160), steady(99, 129)...), true},
	}
	for name, c := range cases {
		h := health{lease: 30 * time.Second, interval: 3 * time.Second}
		for _, s := range c.probes {
			if s == failed {
				h.failed()
				continue
			}
			h.saw(start.Add(time.Duration(s) * time.Second))
		}
		if _, got := h.judge(); got != c.want {
			t.Errorf("%s: healthy %v, want %v", name, got, c.want)
		}
	}
}
