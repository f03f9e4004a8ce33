package main

import (
	"strings"
	"testing"
)

func TestHopsAreTheDifferenceOfTwoReadings(t *testing.T) {
	t.Parallel()
	read := func(sum, count string) map[string]gained {
		return parseHops([]byte(strings.Join([]string{
			`# TYPE compass_delivery_hop_duration_seconds histogram`,
			`compass_delivery_hop_duration_seconds_bucket{hop="hint",otel_scope_name="x",le="0.1"} 9`,
			`compass_delivery_hop_duration_seconds_sum{hop="hint",otel_scope_name="x"} ` + sum,
			`compass_delivery_hop_duration_seconds_count{hop="hint",otel_scope_name="x"} ` + count,
			`another_sum{hop="hint"} 77`,
		}, "\n")))
	}
	var out strings.Builder
	printHops(&out, read("1.5", "10"), read("1.512", "12"))
	if !strings.Contains(out.String(), "2       6.0 ms") {
		t.Errorf("printed %q: want two hops of 6 ms on average", out.String())
	}
}
