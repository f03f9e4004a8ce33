package main

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

const (
	// enrolRetry is the pause between attempts to enrol: Servers may not be up yet.
	enrolRetry = time.Second
	// refusedLook is how often a Runner looks whether NATS refuses it, and how soon it enrols again the first time.
	refusedLook = time.Second
	// refusedPause is the longest pause before it does so again: its Secret follows within a minute or two.
	refusedPause = 15 * time.Second
	// renewPause is how soon credentials that were not renewed in time are asked for again.
	renewPause = time.Minute
)

// errAnother: to Servers this token and this key are a Runner of another name.
var errAnother = errors.New("to its Servers this Runner is another one now: the installation was made anew, so start again")

// enrolled is who this Runner is: its own key, bound to a one-time token. Enrolling again with the same key is how it gets
// fresh credentials.
type enrolled struct {
	server string
	http   *http.Client
	token  string
	// tokenFile may hold another token later: the operator publishes the next once one was used, or the installation was made
	// anew. Empty: token is all there is.
	tokenFile string

	key fabric.Seed
	log *slog.Logger
	now func() time.Time

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
	if e.id != "" && e.id != answer.Msg.GetRunnerId() {
		return errAnother
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

// refresh asks for new credentials at half of their life, and at once where those at hand do not serve, whatever the reason:
// NATS refuses the user, or the commands that come are signed with keys that enrolment did not tell. It asks again, ever more
// rarely, while that does not help. Where this Runner has become another one it returns errAnother, and the process is to
// begin anew.
func (e *enrolled) refresh(ctx context.Context, refused, mistrusted func() bool) error {
	look := time.NewTicker(refusedLook)
	defer look.Stop()
	r := renewal{due: e.now().Add(runnerCredentialTTL / 2), pause: refusedLook}
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
		now := e.now()
		if now.Before(r.next) {
			continue
		}
		no, odd := refused(), mistrusted()
		if !r.wanted(now, no || odd) {
			continue
		}
		err := e.askAgain(ctx)
		r.asked(now, err)
		switch {
		case errors.Is(err, errAnother):
			return err
		case err != nil:
			e.log.WarnContext(ctx, "Credentials were not renewed; trying again", "refused", no, "error", err)
		case no:
			e.log.WarnContext(ctx, "NATS refused this Runner's user; enrolled again", "runner", e.id)
		case odd:
			e.log.WarnContext(ctx, "Commands came with signatures of unknown keys; enrolled again", "runner", e.id)
		}
	}
}

// renewal is when credentials are asked for.
type renewal struct {
	due   time.Time     // they are, however well they serve
	next  time.Time     // at the earliest
	pause time.Duration // after the next attempt
}

// wanted reports whether to ask now. Trouble asks at once; a time without any lets the next trouble do so again.
func (r *renewal) wanted(now time.Time, trouble bool) bool {
	if !trouble && now.Sub(r.next) > refusedPause {
		r.pause = refusedLook
	}
	return trouble || !now.Before(r.due)
}

func (r *renewal) asked(now time.Time, err error) {
	r.due, r.next, r.pause = now.Add(runnerCredentialTTL/2), now.Add(r.pause), min(2*r.pause, refusedPause)
	if err != nil {
		r.due = now.Add(renewPause)
	}
}

// askAgain asks with the token that this Runner has bound, and only where Servers know nothing of it with the one in the file:
// that one may be meant for somebody else.
func (e *enrolled) askAgain(ctx context.Context) error {
	err := e.ask(ctx)
	if connect.CodeOf(err) != connect.CodeUnauthenticated || e.tokenFile == "" {
		return err
	}
	token, unread := readSecret(e.tokenFile, nil)
	if unread != nil || token == e.token {
		return errors.Join(err, unread)
	}
	e.token = token
	return e.ask(ctx)
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
