// Command follow posts one message to a tenant through the API, waits until an agent has it and the cursor has moved, and
// prints what was said and how long each hop took. hack/demo runs it against the cluster.
//
// It reads a folder as a mounted Secret of a tenant has it (url, token, ca.crt). The hops are what the product's own
// metrics gained meanwhile: each --metrics names a command that prints a process's /metrics.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

const (
	agentHandle = "echo"
	channelName = "demo"
	pollEvery   = 20 * time.Millisecond
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "follow:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	f := flag.NewFlagSet("follow", flag.ContinueOnError)
	secret := f.String("secret", "", "folder with url, token and ca.crt")
	address := f.String("address", "", "host:port to connect to instead of the URL's")
	text := f.String("text", "Hello from outside the cluster", "what to say")
	before := f.String("before-post", "", "shell command to run right before the post: a fault begins")
	after := f.String("after-post", "", "shell command to run right after it was answered: a fault goes on or ends")
	timeout := f.Duration("timeout", 2*time.Minute, "how long to wait for everything")
	kubectl := f.String("kubectl", "kubectl -n compass", "how to call kubectl for the namespace, for what is said of a delivery that does not work")
	var metrics commands
	f.Var(&metrics, "metrics", "command that prints /metrics of a process; may be repeated")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	a, err := open(*secret, *address)
	if err != nil {
		return err
	}
	w := watch{out: progress, every: sayEvery, metrics: metrics, kubectl: *kubectl}
	scene, err := a.prepare(ctx, w)
	if err != nil {
		return err
	}
	if w.before, err = metrics.hops(ctx); err != nil {
		return err
	}
	told, err := a.post(ctx, scene, *text, w, fault{*before, *after})
	if err != nil {
		return err
	}
	later, err := metrics.hops(ctx)
	if err != nil {
		return err
	}
	told.print(out)
	if *before+*after == "" { // a process that was killed has forgotten what it measured
		printHops(out, w.before, later)
	}
	return nil
}

// fault is what somebody does to the cluster around a post.
type fault struct{ before, after string }

func shell(ctx context.Context, command string) error {
	if command == "" {
		return nil
	}
	if out, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, out)
	}
	return nil
}

type api struct {
	accounts compassv1connect.AccountServiceClient
	channels compassv1connect.ChannelServiceClient
	comms    compassv1connect.CommsServiceClient
	sessions compassv1connect.SessionServiceClient
	admin    compassv1connect.AdminServiceClient
}

func open(secret, address string) (*api, error) {
	read := func(name string) (string, error) {
		raw, err := os.ReadFile(filepath.Join(secret, name))
		return strings.TrimSpace(string(raw)), err
	}
	base, err := read("url")
	if err != nil {
		return nil, fmt.Errorf("read the tenant's Secret: %w", err)
	}
	token, err := read("token")
	if err != nil {
		return nil, err
	}
	ca, err := read("ca.crt")
	if err != nil {
		return nil, err
	}
	where, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(ca))
	var dialer net.Dialer
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, ServerName: where.Hostname()},
		DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
			if address != "" {
				to = address
			}
			return dialer.DialContext(ctx, network, to)
		},
	}
	client := &http.Client{Transport: bearer{token, transport}}
	return &api{
		accounts: compassv1connect.NewAccountServiceClient(client, base),
		channels: compassv1connect.NewChannelServiceClient(client, base),
		comms:    compassv1connect.NewCommsServiceClient(client, base),
		sessions: compassv1connect.NewSessionServiceClient(client, base),
		admin:    compassv1connect.NewAdminServiceClient(client, base),
	}, nil
}

type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}

// scene is the agent and the channel that the message goes through.
type scene struct{ tenant, agent, channel string }

// prepare makes what is missing: an agent, a channel with it, a session on some Runner. Safe to run again.
func (a *api) prepare(ctx context.Context, w watch) (scene, error) {
	me, err := a.accounts.WhoAmI(ctx, connect.NewRequest(&compassv1.WhoAmIRequest{}))
	if err != nil {
		return scene{}, fmt.Errorf("who am I: %w", err)
	}
	s := scene{tenant: me.Msg.GetTenantSlug()}
	if s.agent, err = a.ensureAgent(ctx); err != nil {
		return s, fmt.Errorf("make an agent: %w", err)
	}
	if s.channel, err = a.ensureChannel(ctx); err != nil {
		return s, fmt.Errorf("make a channel: %w", err)
	}
	if _, err = a.channels.AddMember(ctx, connect.NewRequest(&compassv1.AddMemberRequest{ChannelId: s.channel, AccountId: s.agent})); err != nil {
		return s, fmt.Errorf("let the agent in: %w", err)
	}
	return s, w.aloud(ctx, sessionRunner, func() error { return a.ensureSession(ctx, s.agent) })
}

func (a *api) ensureAgent(ctx context.Context) (string, error) {
	made, err := a.accounts.CreateAccount(ctx, connect.NewRequest(&compassv1.CreateAccountRequest{
		Kind: compassv1.AccountKind_ACCOUNT_KIND_AGENT, Handle: agentHandle, DisplayName: "Echo",
	}))
	if err == nil {
		return made.Msg.GetAccount().GetId(), nil
	}
	if connect.CodeOf(err) != connect.CodeAlreadyExists {
		return "", err
	}
	list, err := a.accounts.ListAccounts(ctx, connect.NewRequest(&compassv1.ListAccountsRequest{}))
	if err != nil {
		return "", err
	}
	for _, account := range list.Msg.GetAccounts() {
		if account.GetHandle() == agentHandle {
			return account.GetId(), nil
		}
	}
	return "", errors.New("the handle is taken by an account that is not listed")
}

func (a *api) ensureChannel(ctx context.Context) (string, error) {
	made, err := a.channels.CreateChannel(ctx, connect.NewRequest(&compassv1.CreateChannelRequest{Name: channelName}))
	if err == nil {
		return made.Msg.GetChannel().GetId(), nil
	}
	if connect.CodeOf(err) != connect.CodeAlreadyExists {
		return "", err
	}
	list, err := a.channels.ListChannels(ctx, connect.NewRequest(&compassv1.ListChannelsRequest{}))
	if err != nil {
		return "", err
	}
	for _, c := range list.Msg.GetChannels() {
		if c.GetName() == channelName {
			return c.GetId(), nil
		}
	}
	return "", errors.New("the channel belongs to somebody else")
}

// ensureSession starts a session, waiting for a Runner that may still be enrolling, and waits until it is claimed. One that
// is there already is stopped first: it may be on a Runner that an upgrade has just replaced, and its lease may take half a
// minute to say so.
func (a *api) ensureSession(ctx context.Context, agent string) error {
	if err := a.stopSessions(ctx, agent); err != nil {
		return fmt.Errorf("stop the old session: %w", err)
	}
	var last error
	err := until(ctx, func() (bool, error) {
		_, last = a.sessions.StartSession(ctx, connect.NewRequest(&compassv1.StartSessionRequest{AgentId: agent}))
		if connect.CodeOf(last) == connect.CodeUnavailable {
			return false, nil
		}
		return last == nil, last
	})
	if err != nil {
		return fmt.Errorf("start a session: %w", errors.Join(err, last))
	}
	err = until(ctx, func() (bool, error) {
		live, err := a.liveSessions(ctx, agent)
		return len(live) > 0 && live[0].GetClaimed(), err
	})
	if err != nil {
		return fmt.Errorf("wait for a Runner to claim the session: %w", err)
	}
	return nil
}

func (a *api) stopSessions(ctx context.Context, agent string) error {
	live, err := a.liveSessions(ctx, agent)
	for _, s := range live {
		_, stopped := a.sessions.StopSession(ctx, connect.NewRequest(&compassv1.StopSessionRequest{SessionId: s.GetId()}))
		err = errors.Join(err, stopped)
	}
	return err
}

func (a *api) liveSessions(ctx context.Context, agent string) ([]*compassv1.Session, error) {
	list, err := a.sessions.ListSessions(ctx, connect.NewRequest(&compassv1.ListSessionsRequest{}))
	if err != nil {
		return nil, err
	}
	var live []*compassv1.Session
	for _, s := range list.Msg.GetSessions() {
		if s.GetAgentId() == agent && s.GetLive() {
			live = append(live, s)
		}
	}
	return live, nil
}

// story is what happened to the message.
type story struct {
	scene
	said, answered    *compassv1.Message
	posted, acked, by time.Duration // since the post began
}

// post says something and waits until nothing is owed any more and the agent has answered.
func (a *api) post(ctx context.Context, s scene, text string, w watch, f fault) (story, error) {
	told := story{scene: s}
	if err := shell(ctx, f.before); err != nil {
		return told, err
	}
	began := time.Now()
	err := w.aloud(ctx, "", func() error {
		made, err := a.comms.PostMessage(ctx, connect.NewRequest(&compassv1.PostMessageRequest{
			ChannelId: s.channel, ClientId: fmt.Sprintf("follow-%d", began.UnixNano()),
			Blocks: []*compassv1.Block{{Content: &compassv1.Block_Text{Text: text}}},
		}))
		if err == nil {
			told.said, told.posted = made.Msg.GetMessage(), time.Since(began)
		}
		return err
	})
	if err != nil {
		return told, err
	}
	if err := shell(ctx, f.after); err != nil {
		return told, err
	}
	err = w.aloud(ctx, telemetry.HopCommit, func() error {
		return until(ctx, func() (bool, error) {
			owed, err := a.admin.ListOwed(ctx, connect.NewRequest(&compassv1.ListOwedRequest{}))
			return err == nil && len(owed.Msg.GetOwed()) == 0, err
		})
	})
	if err != nil {
		return told, err
	}
	told.acked = time.Since(began)
	err = w.aloud(ctx, telemetry.HopAck, func() error {
		return until(ctx, func() (bool, error) {
			var err error
			told.answered, err = a.answer(ctx, s, told.said.GetRev())
			return told.answered != nil, err
		})
	})
	told.by = time.Since(began)
	return told, err
}

func (a *api) answer(ctx context.Context, s scene, after int64) (*compassv1.Message, error) {
	list, err := a.comms.ListMessages(ctx, connect.NewRequest(&compassv1.ListMessagesRequest{ChannelId: s.channel, AfterRev: after}))
	if err != nil {
		return nil, err
	}
	for _, m := range list.Msg.GetMessages() {
		if m.GetAuthorId() == s.agent && m.GetPos() > 0 {
			return m, nil
		}
	}
	return nil, nil
}

func (t story) print(out io.Writer) {
	line := func(m *compassv1.Message) string {
		var b bytes.Buffer
		for _, block := range m.GetBlocks() {
			b.WriteString(block.GetText())
		}
		return b.String()
	}
	fmt.Fprintf(out, "\ntenant %s, channel %s\n", t.tenant, channelName)
	fmt.Fprintf(out, "  posted     %q  as %s at position %d\n", line(t.said), t.said.GetId(), t.said.GetPos())
	fmt.Fprintf(out, "  delivered  to agent @%s, acknowledged, cursor moved\n", agentHandle)
	fmt.Fprintf(out, "  answered   %q  as %s, whole, when its turn had settled\n\n", line(t.answered), t.answered.GetId())
	fmt.Fprintf(out, "  %-34s %8.1f ms\n", "post answered after", ms(t.posted))
	fmt.Fprintf(out, "  %-34s %8.1f ms\n", "cursor seen moved after", ms(t.acked))
	fmt.Fprintf(out, "  %-34s %8.1f ms\n", "answer seen after", ms(t.by))
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// until polls until done, an error, or the context's end.
func until(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// commands print metrics.
type commands []string

func (c *commands) String() string         { return strings.Join(*c, "; ") }
func (c *commands) Set(value string) error { *c = append(*c, value); return nil }

func (c commands) output(ctx context.Context) ([]byte, error) {
	var all []byte
	for _, command := range c {
		look := exec.CommandContext(ctx, "sh", "-c", command)
		look.WaitDelay = time.Second // what the shell started may hold its output
		out, err := look.Output()
		if err != nil {
			return nil, fmt.Errorf("read metrics with %q: %w", command, err)
		}
		all = append(append(all, out...), '\n')
	}
	return all, nil
}
