package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rigelbuild/compass-operator/internal/config"
)

// What the standard library says of a handshake that somebody breaks off is a line of JSON, as all others are.
func TestHandshakesAreLoggedAsTheRest(t *testing.T) {
	t.Parallel()
	read, write := io.Pipe()
	ctx, p, err := newProcess(t.Context(), "test", config.Config{}, write)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.close(nil) })
	lines := bufio.NewScanner(read)
	address := make(chan net.Addr, 1)
	go func() {
		at, err := p.serve(ctx, "test", "127.0.0.1:0", &http.Server{TLSConfig: &tls.Config{Certificates: []tls.Certificate{{}}, MinVersion: tls.VersionTLS12}}) //nolint:gosec // serve sets the timeout
		if err != nil {
			t.Error(err)
		}
		address <- at
	}()
	for lines.Scan() {
		line := lines.Text()
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("not JSON: %s", line)
		}
		switch {
		case strings.Contains(line, "Listening"):
			go func() {
				conn, err := net.Dial("tcp", (<-address).String())
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(conn, "this is no handshake")
				_ = conn.Close()
			}()
		case strings.Contains(line, "TLS handshake error"):
			go func() { _, _ = io.Copy(io.Discard, read) }()
			return
		}
	}
	t.Error("the log ended before the handshake was told")
}

// Holds REQ-064: who stops lets the requests that run finish, and closes what they need after them, last opened first.
func TestClosesWhatIsNeededLast(t *testing.T) {
	t.Parallel()
	ctx, p, err := newProcess(t.Context(), "test", config.Config{}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var order []string
	did := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, what)
	}
	p.onClose(func(context.Context) error { did("store"); return nil })
	p.onClose(func(context.Context) error { did("fabric"); return nil })
	runs, free := make(chan struct{}), make(chan struct{})
	at, err := p.serve(ctx, "test", "127.0.0.1:0", &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(runs)
		<-free
		did("request")
	})}) //nolint:gosec // serve sets the timeout
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at.String(), http.NoBody)
		if err == nil {
			var res *http.Response
			if res, err = http.DefaultClient.Do(q); err == nil {
				err = res.Body.Close()
			}
		}
		answered <- err
	}()
	<-runs
	closed := make(chan error, 1)
	go func() { closed <- p.close(nil) }()
	for { // until nobody is served any more
		conn, err := net.Dial("tcp", at.String())
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	close(free)
	if err := errors.Join(<-answered, <-closed); err != nil {
		t.Error(err)
	}
	if want := []string{"request", "fabric", "store"}; !slices.Equal(order, want) {
		t.Errorf("ended in the order %v, want %v", order, want)
	}
}
