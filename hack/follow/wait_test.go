package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// stuck is a Server to which one can post, and where what is owed stays owed.
type stuck struct {
	compassv1connect.UnimplementedCommsServiceHandler
	compassv1connect.UnimplementedAdminServiceHandler
	owed func()
}

func (s stuck) PostMessage(context.Context, *connect.Request[compassv1.PostMessageRequest]) (*connect.Response[compassv1.PostMessageResponse], error) {
	return connect.NewResponse(&compassv1.PostMessageResponse{Message: &compassv1.Message{Id: "m"}}), nil
}

func (s stuck) ListOwed(context.Context, *connect.Request[compassv1.ListOwedRequest]) (*connect.Response[compassv1.ListOwedResponse], error) {
	s.owed()
	return connect.NewResponse(&compassv1.ListOwedResponse{Owed: []*compassv1.ListOwedResponse_Owed{{}}}), nil
}

// A delivery that does not work is told hop by hop while it is waited for, and its end says where it stuck and what to look at.
func TestWaitingIsNotSilent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	figures := func(process string, hops ...string) {
		var text strings.Builder
		for _, hop := range hops {
			fmt.Fprintf(&text, "compass_delivery_hop_duration_seconds_count{hop=%q} 1\n", hop)
		}
		file := filepath.Join(dir, process)
		if err := errors.Join(os.WriteFile(file+".new", []byte(text.String()), 0o600), os.Rename(file+".new", file)); err != nil {
			t.Error(err)
		}
	}
	figures("server", telemetry.HopCommit, telemetry.HopPublish)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	said := &lines{}
	server := stuck{owed: func() { // goes on where the words show that it was heard
		switch {
		case said.have("Runner takes it"):
			cancel()
		case said.have("worker sees the reference"):
			figures("worker", telemetry.HopHint, telemetry.HopDrain, telemetry.HopDispatch)
		}
	}}
	mux := http.NewServeMux()
	mux.Handle(compassv1connect.NewCommsServiceHandler(server))
	mux.Handle(compassv1connect.NewAdminServiceHandler(server))
	web := httptest.NewServer(mux)
	t.Cleanup(web.Close)
	a := &api{comms: compassv1connect.NewCommsServiceClient(web.Client(), web.URL), admin: compassv1connect.NewAdminServiceClient(web.Client(), web.URL)}
	w := watch{out: said, every: 10 * time.Millisecond, kubectl: "kubectl -n compass", metrics: commands{"cat " + dir + "/server", "cat " + dir + "/worker"}}

	_, err := a.post(ctx, scene{}, "hello", w, fault{})
	if err == nil {
		t.Fatal("the message arrived")
	}
	for _, want := range []string{
		"waiting until the Runner takes it (last seen: worker: read to handed to the broker)", "kubectl -n compass get pods",
		"logs --tail=20 deployment/demo-runner", "logs --tail=20 deployment/main-compass-delivery",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
}

// lines are what was said.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) have(words string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), words)
}
