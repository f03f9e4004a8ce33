package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
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
