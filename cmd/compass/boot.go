package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// The pause between two attempts of a boot to reach Postgres: it doubles up to the latter, as with NATS.
const (
	bootPause    = 250 * time.Millisecond
	bootPauseMax = 2 * time.Second
)

// patiently tries until Postgres is there, or has been away for as long as a boot waits, or waiting cures nothing. Whoever
// exits instead hands the waiting to the kubelet, whose back-off goes on when the outage is over.
func (p *process) patiently(ctx context.Context, try func() error) error {
	for since, pause := time.Now(), bootPause; ; pause = min(2*pause, bootPauseMax) {
		err := try()
		switch {
		case err == nil || !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrTimeout):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Since(since) >= p.bootWait:
			return fmt.Errorf("not within %v: %w", p.bootWait, err)
		}
		p.log.WarnContext(ctx, "Postgres cannot be reached, trying again", "waited", time.Since(since).String(), "error", err)
		select {
		case <-time.After(min(pause, p.bootWait)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitFor says what the boot waits for from now on.
func (p *process) waitFor(what string) { p.waits.Store(&what) }

// begun ends the boot: from now on check says whether the process is ready.
func (p *process) begun(check telemetry.Check) { p.check.Store(&check) }

// ready is the process's readiness from its first moment: liveness is to be answered during the boot too.
func (p *process) ready(ctx context.Context) error {
	if check := p.check.Load(); check != nil {
		return (*check)(ctx)
	}
	if what := p.waits.Load(); what != nil {
		return fmt.Errorf("starting: waiting for %s", *what)
	}
	return errors.New("starting")
}
