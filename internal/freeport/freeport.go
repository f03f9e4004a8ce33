package freeport

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
)

// The ports lie below those that Linux and others give to connections that go out (RFC 6335 has 49152 on, Linux 32768 on):
// one of those may be taken, by a client of another test, between the moment it was found and the moment it is listened at.
const first, last = 15000, 32000

// errNone says that nothing was free, which does not happen by chance.
var errNone = errors.New("no free port of loopback was found")

var listen net.ListenConfig

// Find returns a port at which nobody listens now.
func Find() (int, error) {
	for range 1000 {
		port := first + rand.N(last-first)                                                                      //nolint:gosec // not a secret
		l, err := listen.Listen(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:forbidigo // it waits for nobody
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, errNone
}
