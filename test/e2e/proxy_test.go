package e2e

import (
	"bytes"
	"net"
	"slices"
	"sync"
	"testing"
)

// direction is one half of a connection.
type direction int

const (
	up   direction = iota // from the client to the server
	down                  // from the server to the client
)

// proxy stands between processes and lets a test hold back what they say to each other, from an exact moment on. What is
// held is lost when the proxy is cut: that is how a process dies in a window.
type proxy struct {
	tb       testing.TB
	listener net.Listener

	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever something below changed
	target  string        // "" refuses connections
	closed  bool
	links   map[*link]bool
	held    [2]bool
	except  *link // the one link for which held does not count
	traps   []*trap
}

// link is one connection through the proxy.
type link struct {
	client, server net.Conn
	held           [2]bool
	lost           int // the last bytes of what the client says now do not arrive, nor does anything after them
	done           chan struct{}
	once           sync.Once
	tail           []byte // of what the client said, for marks that come in two pieces
}

// trap acts on the proxy the moment before bytes that a client said are handed on: nothing of the answer can be there yet.
type trap struct {
	mark  string
	act   func(p *proxy, l *link)
	stays bool // for everybody who says the mark, not only the first
}

func newProxy(tb testing.TB, target string) *proxy {
	tb.Helper()
	var listen net.ListenConfig
	l, err := listen.Listen(tb.Context(), "tcp", "127.0.0.1:0")
	must(tb, err)
	p := &proxy{tb: tb, listener: l, target: target, changed: make(chan struct{}), links: map[*link]bool{}}
	var work sync.WaitGroup
	work.Go(func() { p.serve(&work) })
	tb.Cleanup(func() {
		_ = l.Close()
		p.change(func() { p.closed = true })
		p.cut()
		work.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) change(fn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn()
	close(p.changed)
	p.changed = make(chan struct{})
}

// hold stops a direction of every connection, those to come included.
func (p *proxy) hold(dir direction) { p.change(func() { p.held[dir] = true }) }

// release lets everything that is held go on, on every connection.
func (p *proxy) release() {
	p.change(func() {
		p.held, p.except = [2]bool{}, nil
		for l := range p.links {
			l.held = [2]bool{}
		}
	})
}

// onMark sets a trap: act runs, once, when a client says mark.
func (p *proxy) onMark(mark string, act func(p *proxy, l *link)) {
	p.change(func() { p.traps = append(p.traps, &trap{mark: mark, act: act}) })
}

// holdAnswer makes the client that said the mark wait for its answer for ever.
func holdAnswer(_ *proxy, l *link) { l.held[down] = true }

// holdOthers lets the client that said the mark go on, and nobody else.
func holdOthers(p *proxy, l *link) { p.held[up], p.except = true, l }

// holdSpeaker keeps what the client said, and all that it says later on that connection.
func holdSpeaker(_ *proxy, l *link) { l.held[up] = true }

// loseSync lets all of a batch arrive but its end: Postgres has done what it says and waits for the word to commit.
func loseSync(_ *proxy, l *link) { l.lost = len("S\x00\x00\x00\x04") }

// cut ends every connection and drops what was held. Traps are taken away too.
func (p *proxy) cut() {
	p.change(func() {
		for l := range p.links {
			l.close()
		}
		p.traps = nil
	})
}

// open leads to a target, with nothing held but what traps will: a new life of the process behind.
func (p *proxy) open(target string, traps ...*trap) {
	p.cut()
	p.change(func() { p.target, p.held, p.except, p.traps = target, [2]bool{}, nil, traps })
}

// refuse ends every connection and takes no new one until open.
func (p *proxy) refuse() {
	p.change(func() { p.target = "" })
	p.cut()
}

// connections is how many there are.
func (p *proxy) connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

func (l *link) close() {
	l.once.Do(func() {
		close(l.done)
		_ = l.client.Close()
		if l.server != nil {
			_ = l.server.Close()
		}
	})
}

func (p *proxy) serve(work *sync.WaitGroup) {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		l := &link{client: client, done: make(chan struct{})}
		if target != "" {
			var dial net.Dialer
			l.server, err = dial.DialContext(p.tb.Context(), "tcp", target)
		}
		if target == "" || err != nil {
			_ = client.Close()
			continue
		}
		p.change(func() {
			if p.links[l] = true; p.closed {
				l.close()
			}
		})
		work.Go(func() { p.carry(l, up, client, l.server) })
		work.Go(func() { p.carry(l, down, l.server, client) })
	}
}

func (p *proxy) carry(l *link, dir direction, from, to net.Conn) {
	defer func() {
		l.close()
		p.change(func() { delete(p.links, l) })
	}()
	piece := make([]byte, 64<<10)
	for {
		n, err := from.Read(piece)
		if err != nil {
			return
		}
		if dir == up {
			p.spring(l, piece[:n])
		}
		if !p.pass(l, dir) {
			return
		}
		if _, err := to.Write(piece[:n-p.lose(l, dir)]); err != nil || !p.pass(l, dir) {
			return
		}
	}
}

// spring acts where a client said a mark.
func (p *proxy) spring(l *link, piece []byte) {
	p.change(func() {
		said := append(l.tail, piece...)
		p.traps = slices.DeleteFunc(p.traps, func(t *trap) bool {
			sprung := bytes.Contains(said, []byte(t.mark))
			if sprung {
				t.act(p, l)
			}
			return sprung && !t.stays
		})
		l.tail = bytes.Clone(said[max(0, len(said)-256):])
	})
}

// lose returns how much of what is at hand gets lost, and holds the direction where something does.
func (p *proxy) lose(l *link, dir direction) (lost int) {
	if dir == up {
		p.change(func() {
			lost, l.lost = l.lost, 0
			l.held[up] = l.held[up] || lost > 0
		})
	}
	return lost
}

// pass waits while a direction is held. False: the link is over.
func (p *proxy) pass(l *link, dir direction) bool {
	for {
		p.mu.Lock()
		held := l.held[dir] || (p.held[dir] && l != p.except)
		changed := p.changed
		p.mu.Unlock()
		if !held {
			return true
		}
		select {
		case <-changed:
		case <-l.done:
			return false
		}
	}
}
