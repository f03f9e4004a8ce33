package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// gained is how often a hop was taken and how long that took in all, in seconds.
type gained struct{ count, seconds float64 }

// order is that of a message's way.
var order = []struct{ hop, says string }{
	{telemetry.HopCommit, "Server: RPC to commit"},
	{telemetry.HopPublish, "Server: commit to stored by JetStream"},
	{telemetry.HopHint, "worker: commit to reference seen"},
	{telemetry.HopDrain, "worker: marked to read from Postgres"},
	{telemetry.HopDispatch, "worker: read to handed to the broker"},
	{telemetry.HopTaken, "Runner: sent to held"},
	{telemetry.HopAck, "Server: position to cursor moved"},
}

// hops reads the hop histogram out of everything that the commands print; processes are added up.
func (c commands) hops(ctx context.Context) (map[string]gained, error) {
	text, err := c.output(ctx)
	if err != nil {
		return nil, err
	}
	return parseHops(text), nil
}

var sample = regexp.MustCompile(`_(sum|count)\{([^}]*)\} (\S+)`)

func parseHops(text []byte) map[string]gained {
	name := strings.ReplaceAll(telemetry.HopDuration, ".", "_")
	out := map[string]gained{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		line := lines.Text()
		match := sample.FindStringSubmatch(line)
		if !strings.HasPrefix(line, name) || match == nil {
			continue
		}
		_, rest, _ := strings.Cut(match[2], telemetry.AttrHop+`="`)
		hop, _, _ := strings.Cut(rest, `"`)
		value, err := strconv.ParseFloat(match[3], 64)
		if err != nil {
			continue
		}
		g := out[hop]
		if match[1] == "count" {
			g.count += value
		} else {
			g.seconds += value
		}
		out[hop] = g
	}
	return out
}

func printHops(out io.Writer, before, after map[string]gained) {
	fmt.Fprintf(out, "\n  %-42s %6s %12s\n", "hop, the answer's included", "times", "mean")
	for _, o := range order {
		n, s := after[o.hop].count-before[o.hop].count, after[o.hop].seconds-before[o.hop].seconds
		if n > 0 {
			fmt.Fprintf(out, "  %-42s %6.0f %9.1f ms\n", o.says, n, s/n*1000)
		}
	}
	fmt.Fprintln(out)
}
