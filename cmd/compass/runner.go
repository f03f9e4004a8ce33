package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/runner"
)

// enrolRetry is the pause between attempts to enrol: Servers may not be up yet.
const enrolRetry = time.Second

type runnerOptions struct {
	server    string // URL of the Connect API
	caFile    string
	tokenFile string
	keyFile   string // kept, so that a restart is the same Runner
	agent     string
	record    string   // file of the agent record
	natsURLs  []string // instead of what enrolment tells
	listen    string
	level     string
}

func runnerCommand() *cobra.Command {
	var o runnerOptions
	cmd := &cobra.Command{
		Use: "runner", Short: "Host sessions of a reference agent", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runRunner(cmd.Context(), o, cmd.ErrOrStderr()) },
	}
	f := cmd.Flags()
	f.StringVar(&o.server, "server", "http://127.0.0.1:8080", "URL of the Connect API")
	f.StringVar(&o.caFile, "ca-file", "", "certificate authority of the server; default: the system's")
	f.StringVar(&o.tokenFile, "token-file", "", "file with the enrolment token")
	f.StringVar(&o.keyFile, "key-file", "", "file that keeps this Runner's key; made at the first start")
	f.StringVar(&o.agent, "agent", "echo", "agent that runs in each session: echo, slow, crash, reject (what says \"poison\") or record")
	f.StringVar(&o.record, "record", "", "file to which the agent record appends what it takes, one JSON line each")
	f.StringSliceVar(&o.natsURLs, "nats-url", nil, "NATS servers, instead of those that enrolment names")
	f.StringVar(&o.listen, "listen", "-", "address of metrics and health; - for none")
	f.StringVar(&o.level, "log-level", "info", "debug, info, warn or error")
	return cmd
}

// validate refuses flags with which no Server could ever be reached.
func (o runnerOptions) validate() error {
	if o.tokenFile == "" || o.keyFile == "" {
		return errors.New("runner: name the file of the enrolment token with --token-file and a file for the key with --key-file")
	}
	if u, err := url.Parse(o.server); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("runner: --server %q is no address of a Connect API: write https://host:port", o.server)
	}
	return nil
}

func runRunner(ctx context.Context, o runnerOptions, log io.Writer) (err error) {
	if err := o.validate(); err != nil {
		return err
	}
	ctx, p, err := newProcess(ctx, "compass-runner", config.Config{Log: config.Log{Level: o.level}}, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close(err)) }()
	token, err := readSecret(o.tokenFile, nil)
	if err != nil {
		return err
	}
	key, err := runnerKey(o.keyFile)
	if err != nil {
		return err
	}
	client, err := httpClient(o.caFile)
	if err != nil {
		return err
	}
	var running atomic.Pointer[runner.Runner]
	if err := p.serveHealth(ctx, o.listen, alive, func(ctx context.Context) error {
		if r := running.Load(); r != nil {
			return r.Ready(ctx)
		}
		return errors.New("not enrolled yet")
	}); err != nil {
		return err
	}
	e := &enrolled{server: o.server, http: client, token: token, key: key, log: p.log, now: time.Now}
	agent, err := p.agent(o.agent, o.record)
	if err != nil {
		return err
	}
	r, err := p.startRunner(ctx, e, agent, func(c *fabric.RunnerConfig) {
		if len(o.natsURLs) > 0 {
			c.URLs = o.natsURLs
		}
	})
	if err != nil {
		return err
	}
	running.Store(r)
	return p.wait(ctx)
}

// agent finds a reference agent by its name.
func (p *process) agent(name, record string) (runner.Agent, error) {
	agents := runner.Agents(runner.AgentOptions{Log: p.log, Record: record})
	switch {
	case agents[name] == nil:
		return nil, fmt.Errorf("no agent %q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(agents)), ", "))
	case name == "record" && record == "":
		return nil, errors.New("the agent record needs a file: name it with --record")
	}
	return agents[name], nil
}

// startRunner enrols, connects and runs the Runner until the context ends.
func (p *process) startRunner(ctx context.Context, e *enrolled, agent runner.Agent, adjust func(*fabric.RunnerConfig)) (*runner.Runner, error) {
	if err := e.enrol(ctx); err != nil {
		return nil, err
	}
	p.spawn(ctx, "credentials", e.refresh)
	fc := fabric.RunnerConfig{ID: e.id, URLs: e.urls, CAFile: e.caFile,
		Credentials: fabric.Credentials{JWT: e.jwt, Sign: e.key.Sign}, Commands: e.commands, Logger: p.log, Meter: p.tel.Meters}
	adjust(&fc)
	conn, err := fabric.OpenRunner(ctx, fc)
	if err != nil {
		return nil, fmt.Errorf("reach NATS%s: %w", checkNATS(fc.URLs, "--nats-url or, without it, the Server's server.runnerURLs"), err)
	}
	p.onClose(func(context.Context) error { conn.Close(); return nil })
	r, err := runner.New(runner.Options{ID: e.id, Server: e.client(), Link: conn, Agent: agent, Log: p.log})
	if err != nil {
		return nil, err
	}
	p.spawn(ctx, "runner", r.Run)
	return r, nil
}

// runnerKey reads this Runner's key, or makes it and keeps it before anybody hears of it.
func runnerKey(path string) (fabric.Seed, error) {
	dir, name := splitPath(path)
	text, err := home(dir).secret(name, func() ([]byte, error) {
		seed, err := fabric.NewUserSeed()
		return seed.Text(), err
	})
	if err != nil {
		return fabric.Seed{}, fmt.Errorf("keep the Runner's key: %w", err)
	}
	return fabric.ParseSeed(text)
}

// enrolled is who this Runner is: its own key, bound to a one-time token. Enrolling again with the same key is how it gets
// fresh credentials.
type enrolled struct {
	server string
	http   *http.Client
	token  string
	key    fabric.Seed
	log    *slog.Logger
	now    func() time.Time

	// What the first answer said.
	id       string
	urls     []string
	caFile   string
	commands *fabric.CommandKeys

	mu   sync.Mutex
	user string // renewed
}

func (e *enrolled) jwt() (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.user, nil
}

// enrol asks until a Server answers. A refusal is final: the token is unknown, or somebody else has used it.
func (e *enrolled) enrol(ctx context.Context) error {
	for {
		err := e.ask(ctx)
		switch connect.CodeOf(err) { //nolint:exhaustive // every other code is worth another try
		case connect.CodePermissionDenied, connect.CodeUnauthenticated, connect.CodeInvalidArgument:
			if err != nil {
				return fmt.Errorf("enrol: %w", err)
			}
		}
		if err == nil {
			return nil
		}
		e.log.WarnContext(ctx, "Enrolment was not answered", "server", e.server, "error", err)
		select {
		case <-time.After(enrolRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (e *enrolled) ask(ctx context.Context) error {
	nonce := make([]byte, 32)
	_, _ = rand.Read(nonce)
	signature, err := e.key.Sign(naming.EnrolmentProof(nonce, e.token))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	answer, err := compassv1connect.NewRunnerServiceClient(e.http, e.server).Enroll(ctx, connect.NewRequest(&compassv1.EnrollRequest{
		Token: e.token, PublicKey: e.key.Public(), Nonce: nonce, Signature: signature,
	}))
	if err != nil {
		return err
	}
	keys := map[string]ed25519.PublicKey{}
	for id, key := range answer.Msg.GetCommandKeys() {
		keys[id] = key
	}
	if e.commands == nil {
		e.commands = fabric.NewCommandKeys(keys)
	}
	e.commands.Set(keys)
	if e.id == "" { // only the first answer says who this is; what reads it needs no lock then
		e.id, e.urls = answer.Msg.GetRunnerId(), answer.Msg.GetNatsUrls()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.user = answer.Msg.GetNatsJwt()
	return e.keepCA(answer.Msg.GetNatsCa())
}

// keepCA writes the certificate authority of NATS to a file, which is how the fabric takes it.
func (e *enrolled) keepCA(pem string) error {
	if pem == "" || e.caFile != "" {
		return nil
	}
	file, err := os.CreateTemp("", "compass-nats-ca-*.pem")
	if err != nil {
		return err
	}
	defer file.Close()
	e.caFile = file.Name()
	_, err = file.WriteString(pem)
	return err
}

// refresh asks for new credentials at half of their life, and more often while nobody answers.
func (e *enrolled) refresh(ctx context.Context) error {
	wait := runnerCredentialTTL / 2
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		wait = runnerCredentialTTL / 2
		if err := e.ask(ctx); err != nil {
			e.log.WarnContext(ctx, "Credentials were not renewed; trying again", "error", err)
			wait = time.Minute
		}
	}
}

// client proves with each call who this Runner is.
func (e *enrolled) client() compassv1connect.RunnerServiceClient {
	return compassv1connect.NewRunnerServiceClient(e.http, e.server, connect.WithInterceptors(connect.UnaryInterceptorFunc(
		func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, q connect.AnyRequest) (connect.AnyResponse, error) {
				proof := naming.RunnerProof{Runner: e.id, Unix: e.now().Unix()}
				signature, err := e.key.Sign(proof.Message(q.Spec().Procedure))
				if err != nil {
					return nil, err
				}
				proof.Signature = signature
				q.Header().Set("Authorization", proof.Header())
				return next(ctx, q)
			}
		})))
}
