package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/runner"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

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
	if err := p.serveHealth(ctx, o.listen, alive, p.ready); err != nil {
		return err
	}
	e := &enrolled{server: o.server, http: client, token: token, tokenFile: o.tokenFile, key: key, log: p.log, now: time.Now}
	agent, err := p.agent(o.agent, o.record)
	if err != nil {
		return err
	}
	ready, err := p.startRunner(ctx, e, agent, func(c *fabric.RunnerConfig) {
		if len(o.natsURLs) > 0 {
			c.URLs = o.natsURLs
		}
	})
	if err != nil {
		return err
	}
	p.begun(ready)
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

// startRunner enrols, connects and runs the Runner until the context ends. It returns the check of its readiness.
func (p *process) startRunner(ctx context.Context, e *enrolled, agent runner.Agent, adjust func(*fabric.RunnerConfig)) (telemetry.Check, error) {
	p.waitFor("a Server to enrol at: " + e.server)
	if err := e.enrol(ctx); err != nil {
		return nil, err
	}
	fc := fabric.RunnerConfig{ID: e.id, URLs: e.urls, CAFile: e.caFile,
		Credentials: fabric.Credentials{JWT: e.jwt, Sign: e.key.Sign}, Commands: e.commands, Logger: p.log, Meter: p.tel.Meters}
	adjust(&fc)
	p.waitFor("NATS")
	conn, err := fabric.OpenRunner(ctx, fc)
	if err != nil {
		return nil, fmt.Errorf("reach NATS%s: %w", checkNATS(fc.URLs, "--nats-url or, without it, the Server's server.runnerURLs"), err)
	}
	p.onClose(func(context.Context) error { conn.Close(); return nil })
	p.spawn(ctx, "credentials", func(ctx context.Context) error { return e.refresh(ctx, conn.Refused, conn.Mistrusted) })
	r, err := runner.New(runner.Options{ID: e.id, Server: e.client(), Link: conn, Agent: agent, Log: p.log})
	if err != nil {
		return nil, err
	}
	p.spawn(ctx, "runner", r.Run)
	return func(ctx context.Context) error {
		if conn.Refused() {
			return errors.New("NATS refuses this Runner's user; it enrols again until NATS knows it")
		}
		return r.Ready(ctx)
	}, nil
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
