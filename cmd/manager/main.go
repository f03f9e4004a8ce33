// Command manager is the operator: it reconciles CompassServers, CompassTenants and DeliveryStreams.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/controllers/flow"
	"github.com/rigelbuild/compass-operator/internal/kube"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stderr, ctrl.GetConfig)
	stop()
	os.Exit(code)
}

// settings are what flags say.
type settings struct {
	metrics, probes           string
	leaderElect               bool
	leaderNamespace           string
	namespaces                string
	image, natsImage, pull    string
	resync, poll              time.Duration
	servers, tenants, streams int
	logLevel                  string
	version                   bool
}

func parse(args []string, out io.Writer) (settings, error) {
	var s settings
	f := flag.NewFlagSet("manager", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&s.metrics, "metrics-bind-address", ":8080", "where /metrics is served; 0 serves nothing")
	f.StringVar(&s.probes, "health-probe-bind-address", ":8081", "where /healthz and /readyz are served; 0 serves nothing")
	f.BoolVar(&s.leaderElect, "leader-elect", true, "let one of several replicas work at a time")
	f.StringVar(&s.leaderNamespace, "leader-election-namespace", "", "namespace of the lease; empty: that of this pod")
	f.StringVar(&s.namespaces, "namespaces", "", "namespaces to work in, separated by commas; empty: all")
	f.StringVar(&s.image, "image", "", "image of Servers and workers where a CompassServer names none (required)")
	f.StringVar(&s.natsImage, "nats-image", "", "image of NATS (required)")
	f.StringVar(&s.pull, "image-pull-policy", string(corev1.PullIfNotPresent), "Always, IfNotPresent or Never")
	f.DurationVar(&s.resync, "resync", 10*time.Minute, "how often what is well is looked at again, more or less")
	f.DurationVar(&s.poll, "poll", 10*time.Second, "how often what is waited for is looked at again, more or less")
	f.IntVar(&s.servers, "concurrent-servers", 4, "CompassServers looked at at once")
	f.IntVar(&s.tenants, "concurrent-tenants", 16, "CompassTenants looked at at once; those of one server take half at most")
	f.IntVar(&s.streams, "concurrent-streams", 8, "DeliveryStreams looked at at once; those of one server take half at most")
	f.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	f.BoolVar(&s.version, "version", false, "print the version and exit")
	if err := f.Parse(args); err != nil {
		return s, err
	}
	if s.version {
		return s, nil
	}
	var bad []error
	need := func(ok bool, what string) {
		if !ok {
			bad = append(bad, errors.New(what))
		}
	}
	need(f.NArg() == 0, "there are arguments beside the flags: "+strings.Join(f.Args(), " "))
	need(s.image != "", "-image is missing: name the image of Servers and workers")
	need(s.natsImage != "", "-nats-image is missing: name the image of NATS")
	need(s.resync > 0 && s.poll > 0, "-resync and -poll must be above zero")
	need(s.servers > 0 && s.tenants > 0 && s.streams > 0, "-concurrent-… must be above zero")
	return s, errors.Join(bad...)
}

// run is main with its world as arguments. The code is 0 for done or asked to stop, 1 for a failure, 2 for wrong flags.
func run(ctx context.Context, args []string, out io.Writer, config func() (*rest.Config, error)) int {
	s, err := parse(args, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(out, "manager:", err)
		return 2
	case s.version:
		fmt.Fprintln(out, version)
		return 0
	}
	if err := serve(ctx, s, out, config); err != nil {
		fmt.Fprintln(out, "manager:", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, s settings, out io.Writer, config func() (*rest.Config, error)) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(s.logLevel)); err != nil {
		return fmt.Errorf("-log-level: %w", err)
	}
	log := slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level}))
	// Whatever else writes into this log does so in its form: controller-runtime, client-go, and servers of the standard library.
	ctrl.SetLogger(logr.FromSlogHandler(log.Handler()))
	klog.SetSlogLogger(log)
	slog.SetDefault(log)
	api, err := config()
	if err != nil {
		return fmt.Errorf("find the Kubernetes API: %w", err)
	}
	mgr, err := newManager(api, s)
	if err != nil {
		return err
	}
	counts, err := flow.NewMetrics(metrics.Registry, mgr.GetClient())
	if err != nil {
		return err
	}
	pool := backend.NewPool(backend.Options{Log: log})
	defer pool.Close()
	err = controllers.Register(ctx, mgr, controllers.Options{
		Images: kube.Images{Compass: s.image, NATS: s.natsImage, PullPolicy: corev1.PullPolicy(s.pull)}, Pool: pool, Metrics: counts,
		Resync: s.resync, Poll: s.poll, Servers: s.servers, Tenants: s.tenants, Streams: s.streams,
	})
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "Starting the operator", "version", version)
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run manager: %w", err)
	}
	return nil
}

func newManager(api *rest.Config, s settings) (manager.Manager, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	o := manager.Options{
		Scheme: scheme, Cache: controllers.CacheOptions(),
		Metrics: server.Options{BindAddress: s.metrics}, HealthProbeBindAddress: s.probes,
		LeaderElection: s.leaderElect, LeaderElectionID: "compass-operator." + v1alpha1.GroupVersion.Group,
		LeaderElectionNamespace: s.leaderNamespace,
		// The process ends when the manager does, so the next one need not wait for the lease to run out.
		LeaderElectionReleaseOnCancel: true,
	}
	if s.namespaces != "" {
		o.Cache.DefaultNamespaces = map[string]cache.Config{}
		for _, namespace := range strings.Split(s.namespaces, ",") {
			o.Cache.DefaultNamespaces[strings.TrimSpace(namespace)] = cache.Config{}
		}
	}
	mgr, err := manager.New(api, o)
	if err != nil {
		return nil, fmt.Errorf("make manager: %w", err)
	}
	if err := errors.Join(mgr.AddHealthzCheck("alive", healthz.Ping), mgr.AddReadyzCheck("ready", healthz.Ping)); err != nil {
		return nil, fmt.Errorf("add checks: %w", err)
	}
	return mgr, nil
}
