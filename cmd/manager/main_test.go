package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// Holds REQ-219: wrong flags end the process with what to do, before it asks anybody anything.
func TestRun(t *testing.T) {
	t.Parallel()
	good := []string{"-image=c:1", "-nats-image=n:1"}
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"version":        {[]string{"-version"}, 0, "dev"},
		"help":           {[]string{"-help"}, 0, "-nats-image"},
		"no images":      {nil, 2, "-image is missing"},
		"no NATS image":  {[]string{"-image=c:1"}, 2, "-nats-image is missing"},
		"unknown flag":   {append(good, "-x"), 2, "not defined: -x"},
		"argument":       {append(good, "x"), 2, "arguments beside the flags: x"},
		"no concurrency": {append(good, "-concurrent-streams=0"), 2, "-concurrent-… must be above zero"},
		"no resync":      {append(good, "-resync=0s"), 2, "-resync and -poll"},
		"log level":      {append(good, "-log-level=loud"), 1, "-log-level"},
		"no cluster":     {good, 1, "find the Kubernetes API: nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			code := run(context.Background(), c.args, &out, func() (*rest.Config, error) { return nil, errors.New("nowhere") })
			if code != c.code || !strings.Contains(out.String(), c.says) {
				t.Errorf("code %d, said %q; want %d and %q", code, out.String(), c.code, c.says)
			}
		})
	}
}
