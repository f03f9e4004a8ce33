package e2e

import (
	"context"
	"crypto/ed25519"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/runner"
)

// stage is a Runner in the test process whose agents do what the test says. It reaches the product as any Runner does.
type stage struct {
	tb      testing.TB
	mu      sync.Mutex
	scripts map[string]runner.Agent // by handle
	live    map[string]*runner.Session
	taken   map[string][]runner.Item
}

// newStage enrols a Runner at a standalone process and runs it until the test ends.
func newStage(tb testing.TB, s *standalone) *stage {
	tb.Helper()
	token := call(tb, s.api.admin.IssueRunnerToken, &compassv1.IssueRunnerTokenRequest{}).GetToken()
	key, err := fabric.NewUserSeed()
	must(tb, err)
	nonce := []byte("a nonce of this test's own")
	signature, err := key.Sign(naming.EnrolmentProof(nonce, token))
	must(tb, err)
	answer := call(tb, compassv1connect.NewRunnerServiceClient(http.DefaultClient, s.url).Enroll, &compassv1.EnrollRequest{
		Token: token, PublicKey: key.Public(), Nonce: nonce, Signature: signature,
	})
	s.secrets.add("an enrolment token", token)
	s.secrets.add("a Runner's key", string(key.Text()))
	commands := map[string]ed25519.PublicKey{}
	for id, public := range answer.GetCommandKeys() {
		commands[id] = public
	}
	quiet := slog.New(slog.DiscardHandler)
	conn, err := fabric.OpenRunner(tb.Context(), fabric.RunnerConfig{
		ID: answer.GetRunnerId(), URLs: answer.GetNatsUrls(), Commands: fabric.NewCommandKeys(commands), Logger: quiet,
		Credentials: fabric.Credentials{JWT: func() (string, error) { return answer.GetNatsJwt(), nil }, Sign: key.Sign},
	})
	must(tb, err)
	tb.Cleanup(conn.Close)
	g := &stage{tb: tb, scripts: map[string]runner.Agent{}, live: map[string]*runner.Session{}, taken: map[string][]runner.Item{}}
	r, err := runner.New(runner.Options{
		ID: answer.GetRunnerId(), Server: signing(s.url, answer.GetRunnerId(), key), Link: conn, Agent: g.play, Log: quiet,
	})
	must(tb, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := r.Run(tb.Context()); err != nil {
			tb.Errorf("Runner: %v", err)
		}
	}()
	tb.Cleanup(func() { <-ended })
	return g
}

// signing is a client that proves with each call which Runner it is.
func signing(url, id string, key fabric.Seed) compassv1connect.RunnerServiceClient {
	return compassv1connect.NewRunnerServiceClient(http.DefaultClient, url, connect.WithInterceptors(connect.UnaryInterceptorFunc(
		func(next connect.UnaryFunc) connect.UnaryFunc {
			return func(ctx context.Context, q connect.AnyRequest) (connect.AnyResponse, error) {
				proof := naming.RunnerProof{Runner: id, Unix: time.Now().Unix()}
				var err error
				if proof.Signature, err = key.Sign(proof.Message(q.Spec().Procedure)); err != nil {
					return nil, err
				}
				q.Header().Set("Authorization", proof.Header())
				return next(ctx, q)
			}
		})))
}

// script says what the sessions of an agent do; without one they only take.
func (g *stage) script(handle string, agent runner.Agent) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.scripts[handle] = agent
}

func (g *stage) play(ctx context.Context, s *runner.Session) error {
	g.mu.Lock()
	g.live[s.AgentHandle] = s
	script := g.scripts[s.AgentHandle]
	g.mu.Unlock()
	if script != nil {
		return script(ctx, s)
	}
	for {
		item, err := s.Next(ctx)
		if err != nil {
			return err
		}
		g.take(s, item)
	}
}

// take is the consequence of an item: it is remembered, then done.
func (g *stage) take(s *runner.Session, item runner.Item) {
	g.mu.Lock()
	g.taken[s.AgentHandle] = append(g.taken[s.AgentHandle], item)
	g.mu.Unlock()
	s.Done(item)
}

// session is the running session of an agent.
func (g *stage) session(handle string) *runner.Session {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.live[handle]
}

// heard is what an agent took so far, as texts, steers with a ! before them.
func (g *stage) heard(handle string) (words []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, item := range g.taken[handle] {
		said := item.Text
		if item.Message != nil {
			said = whole(item.Message)
		}
		if item.Steer {
			said = "!" + said
		}
		words = append(words, said)
	}
	return words
}

// hears waits until an agent took exactly this.
func (g *stage) hears(handle string, words ...string) {
	g.tb.Helper()
	await(g.tb, handle+" hears what it is owed", func() string {
		got := g.heard(handle)
		if len(got) != len(words) {
			return unless(false, "%q, want %q", got, words)
		}
		for i := range words {
			if got[i] != words[i] {
				return unless(false, "%q, want %q", got, words)
			}
		}
		return ""
	})
}
