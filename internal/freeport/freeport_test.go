package freeport_test

import (
	"net"
	"strconv"
	"testing"

	"github.com/rigelbuild/compass-operator/internal/freeport"
)

func TestFind(t *testing.T) {
	t.Parallel()
	for range 20 {
		port, err := freeport.Find()
		if err != nil {
			t.Fatal(err)
		}
		if port >= 32768 {
			t.Errorf("port %d may be taken by a connection that goes out", port)
		}
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			t.Errorf("port %d is not free: %v", port, err)
			continue
		}
		_ = l.Close()
	}
}
