package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/embedded"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/runner"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// The one stream of a standalone process, and the handle of the platform's admin in it.
const (
	standaloneStream = "main"
	standaloneAdmin  = "admin"
)

type standaloneOptions struct {
	data         string
	postgresFile string
	database     string
	listen       string
	natsListen   string
	metrics      string
	agent        string
	record       string
	level        string
	lease        time.Duration
	floorTick    time.Duration
}

func standaloneCommand() *cobra.Command {
	var o standaloneOptions
	cmd := &cobra.Command{
		Use: "standalone", Short: "Server, worker, Runner and NATS in one process", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runStandalone(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.data, "data", "compass-data", "folder for keys, passwords, tokens and NATS's files")
	f.StringVar(&o.postgresFile, "postgres-file", "", "file with the URL of a Postgres login that may make roles and databases")
	f.StringVar(&o.database, "database", "compass", "database to use; made if absent")
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "address of the Connect API, in clear")
	f.StringVar(&o.natsListen, "nats-listen", "", "address of NATS for Runners in other processes; default: none")
	f.StringVar(&o.metrics, "metrics-listen", "127.0.0.1:9090", "address of metrics and health; - for none")
	f.StringVar(&o.agent, "agent", "echo", "agent of the Runner inside: echo, slow, crash, reject (what says \"poison\"), record, or none for no Runner")
	f.StringVar(&o.record, "record", "", "file to which the agent record appends what it takes, one JSON line each")
	f.StringVar(&o.level, "log-level", "info", "debug, info, warn or error")
	f.DurationVar(&o.lease, "session-lease", 30*time.Second, "how long a Runner may be silent")
	f.DurationVar(&o.floorTick, "floor-tick", 2*time.Minute, "period of the sweep that finds what everything else missed")
	return cmd
}

// standalone is one process that is everything; its parts are the ones that run in pods.
type standalone struct {
	*process
	o    standaloneOptions
	home home
	c    config.Config
	keys []config.CommandKey
	// Open holds every right of a Server, fenced those of a worker.
	open, fenced *store.Store
	nats         *embedded.Server
	fabric       *fabric.Fabric
}

func runStandalone(ctx context.Context, o standaloneOptions, out, log io.Writer) (err error) {
	c := config.Config{
		Log: config.Log{Level: o.level}, Store: config.Store{Bootstrap: true},
		Server:   config.Server{Listen: o.listen},
		Sessions: config.Sessions{Lease: config.Duration(o.lease)},
		Delivery: config.Delivery{Stream: standaloneStream, Holder: "standalone", FloorTick: config.Duration(o.floorTick)},
	}.WithDefaults()
	ctx, p, err := newProcess(ctx, "compass-standalone", c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close(err)) }()
	s := &standalone{process: p, o: o, home: home(o.data), c: c}
	if err := o.validate(); err != nil {
		return err
	}
	agent, err := s.namedAgent()
	if err != nil {
		return err
	}
	if err := s.openGround(ctx); err != nil {
		return err
	}
	address, err := s.startParts(ctx, agent)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "ready: Connect API at http://%s, token of the platform's admin in %s, NATS for Runners at %s\n",
		address, s.home.path("admin-token"), orNone(s.nats.URL()))
	return p.wait(ctx)
}

// openGround opens what everything stands on: the folder, for this process alone, Postgres, and NATS.
func (s *standalone) openGround(ctx context.Context) error {
	unlock, err := s.home.lock()
	if err != nil {
		return err
	}
	s.onClose(unlock)
	if err := s.openStores(ctx); err != nil {
		return err
	}
	if s.keys, err = s.commandKeys(); err != nil {
		return err
	}
	return s.openNATS(ctx)
}

// startParts starts Server, worker and Runner, and returns the address of the API. In a cluster they are processes of their own; here
// they meet at the same broker with the same rights.
func (s *standalone) startParts(ctx context.Context, agent runner.Agent) (string, error) {
	srv, err := s.assembleServer(ctx, serverParts{
		config: s.c, store: s.open, fabric: s.fabric, access: s.access(), streamOf: carried, stream: standaloneStream,
	})
	if err != nil {
		return "", err
	}
	if err := errors.Join(s.place(ctx), s.ensureAdmin(ctx)); err != nil {
		return "", err
	}
	address, err := s.serveEdge(ctx, s.c.Server, srv.edge.Handler())
	if err != nil {
		return "", err
	}
	worker := workerParts{config: s.c.Delivery, store: s.fenced, fabric: s.fabric, keys: s.keys, wake: waker{srv.hub}}
	if err := s.startWorker(ctx, worker); err != nil {
		return "", err
	}
	if err := s.serveHealth(ctx, s.o.metrics, alive, srv.ready); err != nil {
		return "", err
	}
	return address, s.runnerInside(ctx, "http://"+address, agent)
}

// validate refuses what a flag can be set to and nothing could work with.
func (o standaloneOptions) validate() error {
	var bad []error
	if o.postgresFile == "" {
		bad = append(bad, errors.New("no Postgres: name the file that holds its URL with --postgres-file, or use make run"))
	}
	if o.data == "" {
		bad = append(bad, errors.New("no folder: name one with --data for keys, passwords, tokens and NATS's files"))
	}
	if o.lease < time.Second {
		bad = append(bad, fmt.Errorf("--session-lease %v: at least 1s, or every Runner is taken for dead", o.lease))
	}
	if o.floorTick < 100*time.Millisecond {
		bad = append(bad, fmt.Errorf("--floor-tick %v: at least 100ms, or nothing else happens", o.floorTick))
	}
	return errors.Join(bad...)
}

// namedAgent is nil where no Runner is wanted.
func (s *standalone) namedAgent() (runner.Agent, error) {
	if s.o.agent == "none" {
		return nil, nil //nolint:nilnil // none is what was asked for
	}
	return s.agent(s.o.agent, s.o.record)
}

// carried: every tenant is the one stream's.
func carried(string) (string, bool) { return standaloneStream, true }

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// openStores makes the database if need be and opens it twice: as Servers do, and fenced as a worker does.
func (s *standalone) openStores(ctx context.Context) error {
	dsn, err := readSecret(s.o.postgresFile, nil)
	if err != nil {
		return err
	}
	db, err := s.home.database(ctx, dsn, s.o.database, s.log)
	if err != nil {
		return err
	}
	if s.open, err = s.openStore(ctx, s.c.Store, []config.Database{db}, false); err != nil {
		return err
	}
	worker := s.c.Store
	worker.Bootstrap = false
	db.Provision = ""
	s.fenced, err = s.openStore(ctx, worker, []config.Database{db}, true)
	return err
}

func (s *standalone) commandKeys() ([]config.CommandKey, error) {
	const name = "command-keys.yaml"
	if _, err := s.home.secret(name, commandKeys); err != nil {
		return nil, fmt.Errorf("keep command key: %w", err)
	}
	return config.LoadCommandKeys(s.home.path(name))
}

// openNATS starts the broker inside this process and connects to it.
func (s *standalone) openNATS(ctx context.Context) error {
	nats, err := embedded.Start(embedded.Config{Dir: s.home.path("nats"), Listen: s.o.natsListen, Logger: s.log})
	if err != nil {
		return fmt.Errorf("start NATS in %s: %w", s.home.path("nats"), err)
	}
	s.nats = nats
	s.onClose(func(context.Context) error { nats.Stop(); return nil })
	credentials, err := nats.Standalone()
	if err != nil {
		return err
	}
	fc := s.fabricConfig("compass-standalone", "", s.c.Fabric, s.keys)
	fc.URLs, fc.InProcess, fc.Credentials = nil, nats, credentials
	fc.Stream, fc.Manage, fc.Instance = standaloneStream, true, newIDs().Instance()
	fc.StreamOf = carried
	s.fabric, err = s.openFabric(ctx, fc)
	return err
}

func (s *standalone) access() *runnerAccess {
	a := &runnerAccess{issuers: map[string]fabric.Issuer{naming.SharedFleet: s.nats.Runners()}, commandKeys: publicKeys(s.keys), now: time.Now}
	if url := s.nats.URL(); url != "" {
		a.urls = []string{url}
	}
	return a
}

// place gives the platform's own tenant to the one stream, where nobody has done so before.
func (s *standalone) place(ctx context.Context) error {
	at, err := s.open.Placement(store.WithTenant(ctx, store.BootstrapTenantID))
	if err != nil || at.Stream == standaloneStream {
		return err
	}
	return s.open.PlaceTenant(ctx, store.BootstrapTenantID, at.Stream, standaloneStream)
}

// ensureAdmin makes the way into a new deployment: the platform's first admin, whose token is kept before it is valid.
func (s *standalone) ensureAdmin(ctx context.Context) error {
	ids := newIDs()
	text, err := s.home.secret("admin-token", func() ([]byte, error) {
		token, err := ids.Token(string(store.BootstrapTenantID))
		return []byte(token), err
	})
	if err != nil {
		return fmt.Errorf("keep admin token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	return s.open.EnsureAdmin(ctx, store.BootstrapTenantID, store.Account{ID: ids.Account(), Handle: standaloneAdmin, DisplayName: "Platform admin"},
		store.NewToken{ID: ids.TokenID(), Hash: naming.TokenHash(token), Actor: "standalone"})
}

// runnerInside enrols a Runner of this process over the same door as any other, with a one-time token of its own.
func (s *standalone) runnerInside(ctx context.Context, server string, agent runner.Agent) error {
	ids := newIDs()
	text, err := s.home.secret("runner-token", func() ([]byte, error) {
		token, err := ids.RunnerToken(naming.SharedFleet)
		return []byte(token), err
	})
	if err != nil {
		return fmt.Errorf("keep enrolment token: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if _, err := s.open.EnsureRunnerToken(ctx, naming.TokenHash(token), naming.SharedFleet); err != nil || agent == nil {
		return err
	}
	key, err := runnerKey(filepath.Join(s.o.data, "runner-key"))
	if err != nil {
		return err
	}
	client, err := httpClient("")
	if err != nil {
		return err
	}
	e := &enrolled{server: server, http: client, token: token, key: key, log: s.log, now: time.Now}
	_, err = s.startRunner(ctx, e, agent, func(c *fabric.RunnerConfig) { c.URLs, c.InProcess = nil, s.nats })
	return err
}
