package storetest

import (
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy stands between a client and a server and counts round trips exactly: how often the client spoke again after the
// server had answered. It can hold answers back, as a slow link does, and cut every connection.
type Proxy struct {
	listener net.Listener
	target   string
	delay    time.Duration

	trips   atomic.Int64
	accepts atomic.Int64

	mu      sync.Mutex
	conns   []net.Conn
	down    bool
	resumed chan struct{} // open while nothing passes; nil else
}

// NewProxy puts a proxy in front of the server of dsn, a URL; delay is added to each answer.
func NewProxy(tb testing.TB, dsn string, delay time.Duration) *Proxy {
	tb.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		tb.Fatal("the server's address must be a URL")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &Proxy{listener: l, target: u.Host, delay: delay}
	var done sync.WaitGroup
	done.Go(func() { p.serve(&done) })
	tb.Cleanup(func() {
		_ = l.Close()
		p.Pause(false)
		p.Cut()
		done.Wait()
	})
	return p
}

// Through returns dsn, a URL, by way of the proxy.
func (p *Proxy) Through(tb testing.TB, dsn string) string {
	tb.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		tb.Fatal("the server's address must be a URL")
	}
	u.Host = p.listener.Addr().String()
	return u.String()
}

// Reset sets the counts to zero.
func (p *Proxy) Reset() {
	p.trips.Store(0)
	p.accepts.Store(0)
}

// Trips is how many round trips there were since Reset.
func (p *Proxy) Trips() int { return int(p.trips.Load()) }

// Connections is how many connections were made since Reset.
func (p *Proxy) Connections() int { return int(p.accepts.Load()) }

// Cut ends every connection; new ones may come.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}

// SetDown refuses, or again allows, new connections, and ends those there are.
func (p *Proxy) SetDown(down bool) {
	p.mu.Lock()
	p.down = down
	p.mu.Unlock()
	p.Cut()
}

// Pause holds everything back, in both directions, until it is called with false: what a frozen process or a cut link
// looks like from either side.
func (p *Proxy) Pause(paused bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case paused && p.resumed == nil:
		p.resumed = make(chan struct{})
	case !paused && p.resumed != nil:
		close(p.resumed)
		p.resumed = nil
	}
}

// pass waits while the proxy is paused.
func (p *Proxy) pass() {
	p.mu.Lock()
	resumed := p.resumed
	p.mu.Unlock()
	if resumed != nil {
		<-resumed
	}
}

func (p *Proxy) serve(done *sync.WaitGroup) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.accepts.Add(1)
		server, err := net.Dial("tcp", p.target)
		if err != nil || !p.keep(client, server) {
			_ = client.Close()
			if err == nil {
				_ = server.Close()
			}
			continue
		}
		answered := &atomic.Bool{}
		answered.Store(true)
		done.Go(func() { p.forward(server, client, answered) })
		done.Go(func() { p.back(client, server, answered) })
	}
}

func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return false
	}
	p.conns = append(p.conns, conns...)
	return true
}

// forward counts a round trip where the client speaks after an answer.
func (p *Proxy) forward(server, client net.Conn, answered *atomic.Bool) {
	defer server.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if n > 0 {
			if answered.Swap(false) && buf[0] != 'X' { // Terminate waits for no answer
				p.trips.Add(1)
			}
			p.pass()
			if _, err := server.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (p *Proxy) back(client, server net.Conn, answered *atomic.Bool) {
	defer client.Close()
	if p.delay == 0 {
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if n > 0 {
				answered.Store(true)
				p.pass()
				if _, err := client.Write(buf[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}
	delayed(client, server, p.delay, answered)
}

// delayed hands each piece on when its time has come, so that pieces in flight overlap as on a real link.
func delayed(client io.Writer, server io.Reader, delay time.Duration, answered *atomic.Bool) {
	type piece struct {
		data []byte
		due  time.Time
	}
	pieces := make(chan piece, 1024)
	go func() {
		defer close(pieces)
		for {
			buf := make([]byte, 16<<10)
			n, err := server.Read(buf)
			if n > 0 {
				answered.Store(true)
				pieces <- piece{data: buf[:n], due: time.Now().Add(delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range pieces {
		<-time.After(time.Until(p.due))
		if _, err := client.Write(p.data); err != nil {
			for range pieces { // let the reader end
			}
			return
		}
	}
}
