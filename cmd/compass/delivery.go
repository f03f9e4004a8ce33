package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/delivery"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/store"
)

func deliveryCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use: "delivery", Short: "Deliver for one stream, as its only worker", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDelivery(cmd.Context(), path, cmd.ErrOrStderr()) },
	}
	cmd.Flags().StringVar(&path, "config", "/etc/compass/config.yaml", "configuration file")
	return cmd
}

func runDelivery(ctx context.Context, path string, log io.Writer) (err error) {
	told, err := config.LoadDelivery(path)
	if err != nil {
		return err
	}
	ctx, p, err := newProcess(ctx, "compass-delivery", told.Config, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close(err)) }()

	if err := p.serveHealth(ctx, told.Telemetry.Listen, alive, p.ready); err != nil {
		return err
	}
	st, err := p.openStore(ctx, told.Store, told.Databases, true)
	if err != nil {
		return err
	}
	starts, err := p.openStarts(ctx, told.Store, told.Databases)
	if err != nil {
		return err
	}
	leases, err := p.acquire(ctx, told.Delivery, st)
	if err != nil {
		return err
	}
	// Only the holder of the lease is connected, and nothing waits in a buffer for a connection to come back (ruling F4).
	fc := p.fabricConfig("compass-delivery", fabric.InboxPrefix(fabric.RoleWorker, told.Delivery.Stream), told.Fabric, told.CommandKeys)
	fc.Stream, fc.MaxDeliver, fc.Backoff = told.Delivery.Stream, told.Delivery.MaxDeliver, durations(told.Delivery.Backoff)
	fc.Spec.MaxAckPending, fc.Instance = told.Delivery.MaxAckPending, newIDs().Instance()
	fab, err := p.openFabric(ctx, fc)
	if err != nil {
		return err
	}
	wake, err := p.newWaker(starts, fab)
	if err != nil {
		return err
	}
	if err := p.deliver(ctx, workerParts{config: told.Delivery, store: st, fabric: fab, keys: told.CommandKeys, wake: wake}, leases); err != nil {
		return err
	}
	p.begun(alive)
	return p.wait(ctx)
}

// workerParts are what a worker is made of; standalone brings its own.
type workerParts struct {
	config config.Delivery
	store  *store.Store
	fabric *fabric.Fabric
	keys   []config.CommandKey
	wake   delivery.Waker
}

// startWorker acquires the lease and delivers.
func (p *process) startWorker(ctx context.Context, o workerParts) error {
	leases, err := p.acquire(ctx, o.config, o.store)
	if err != nil {
		return err
	}
	return p.deliver(ctx, o, leases)
}

// acquire waits until this process is the stream's writer, and keeps being it. Losing database 0's lease ends the process
// without a goodbye: somebody else may be the writer already.
func (p *process) acquire(ctx context.Context, c config.Delivery, st *store.Store) (*delivery.LeaseSet, error) {
	var held []delivery.Lease
	for _, id := range st.DatabaseIDs() {
		lease, err := st.NewLease(store.LeaseOptions{Database: id, Stream: c.Stream, Holder: c.Holder, TTL: time.Duration(c.Lease)})
		if err != nil {
			return nil, err
		}
		held = append(held, lease)
	}
	leases, err := delivery.NewLeaseSet(delivery.LeaseOptions{Leases: held, Renew: time.Duration(c.Lease) / 3, Log: p.log})
	if err != nil {
		return nil, err
	}
	p.waitFor("the lease of stream " + c.Stream)
	if err := leases.Acquire(ctx); err != nil {
		return nil, err
	}
	p.onClose(leases.Release)
	p.spawn(ctx, "lease of stream "+c.Stream, func(ctx context.Context) error {
		err := leases.Run(ctx)
		if errors.Is(err, store.ErrLeaseLost) {
			err = fmt.Errorf("%w: Postgres did not answer for as long as it lasts, or another process took it; "+
				"start again when Postgres answers and nobody else delivers for this stream", err)
		}
		return err
	})
	return leases, nil
}

func (p *process) deliver(ctx context.Context, o workerParts, leases *delivery.LeaseSet) error {
	verifier := fabric.NewCommandKeys(commandPublicKeys(o.keys))
	worker, err := delivery.NewConsumer(o.store, o.fabric, o.store, o.fabric, p.log, delivery.Options{
		Stream: o.config.Stream, Writes: o.store, Leases: leases, DeadLetters: o.fabric, OpenProof: verifier.Open,
		Notes: o.fabric, Waker: o.wake, Backlog: o.store,
		MaxDeliver: o.config.MaxDeliver, Backoff: durations(o.config.Backoff), AckWait: time.Duration(o.config.AckWait),
		FloorTick: time.Duration(o.config.FloorTick), Meter: p.tel.Meters,
		Stall: func(what string) { // a process that hangs must not keep its lease alive
			p.log.Error("The worker has not moved; exiting", "stuck", what)
			os.Exit(exitStalled)
		},
	})
	if err != nil {
		return err
	}
	// The worker stops, finishing what is under way, before the lease is given back.
	run, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	p.onClose(func(ctx context.Context) error {
		stop()
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("stop the worker: %w", ctx.Err())
		}
	})
	p.spawn(run, "delivery", func(ctx context.Context) error {
		defer close(done)
		return worker.Run(ctx)
	})
	return nil
}

// exitStalled tells a hang from other failures in a pod's status.
const exitStalled = 70

func durations(in []config.Duration) []time.Duration {
	out := make([]time.Duration, len(in))
	for i, d := range in {
		out[i] = time.Duration(d)
	}
	return out
}
