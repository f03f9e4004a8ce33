package delivery

import (
	"fmt"
	"strings"
	"testing"
)

// TestBeside runs every side under every load, one after the other, and prints the table. Only what is lost fails it: figures
// are read, not judged, because they are those of the machine of the day.
func TestBeside(t *testing.T) {
	var all []result
	for _, recipients := range []int{1, 10} {
		for _, rate := range []int{200, 800} {
			for _, name := range []string{"compass", "polling", "river", "jetstream"} {
				t.Run(fmt.Sprintf("%s/%d recipients/%d a second", name, recipients, rate), func(t *testing.T) {
					r := measure(t, name, recipients, rate)
					if r.lost != 0 {
						t.Errorf("%d deliveries are missing", r.lost)
					}
					t.Logf("%+v", r)
					all = append(all, r)
				})
			}
		}
	}
	t.Log("\n" + table(all))
}

func measure(t *testing.T, name string, recipients, rate int) result {
	t.Helper()
	var s *stage
	switch name {
	case "compass":
		s = newCompass(t, recipients)
	case "polling":
		s = newPolling(t, recipients)
	case "river":
		s = newRiver(t, recipients)
	default:
		m := newTimes()
		return load(t, name, recipients, rate, timedLoop{newLoop(t, recipients, m), m}, m, 0)
	}
	r := load(t, name, recipients, rate, s, s.times, s.postmaster())
	return r
}

// table shows each load with its sides, and what each is of River's.
func table(all []result) string {
	var b strings.Builder
	fmt.Fprintln(&b, "| recipients | deliveries/s | side | p50 ms | p99 ms | deliveries per CPU s | Postgres's part | p50 of River | p99 of River | per CPU of River | late ms |")
	fmt.Fprintln(&b, "|---|---|---|---|---|---|---|---|---|---|---|")
	for _, r := range all {
		ratios := "| | | "
		for _, o := range all {
			if o.side == "river" && o.recipients == r.recipients && o.rate == r.rate && o.p50 > 0 && r.side != "river" {
				ratios = fmt.Sprintf("| %.2f | %.2f | %.2f ", float64(r.p50)/float64(o.p50), float64(r.p99)/float64(o.p99), r.perCPU/o.perCPU)
			}
		}
		fmt.Fprintf(&b, "| %d | %d | %s | %.2f | %.2f | %.0f | %.2f %s| %d |\n", r.recipients, r.rate, r.side,
			float64(r.p50.Microseconds())/1000, float64(r.p99.Microseconds())/1000, r.perCPU, r.database, ratios, r.late.Milliseconds())
	}
	return b.String()
}
