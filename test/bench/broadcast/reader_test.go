package broadcast

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// stamp begins each measured message; its number follows, in a fixed width.
const (
	stamp       = "bench-message-"
	stampDigits = 6
)

func stamped(i int) string { return fmt.Sprintf("%s%0*d", stamp, stampDigits, i) }

// readers are connections that are told things. Each reports every message once, with the time at which it was there.
type readers struct {
	tb    testing.TB
	conns []net.Conn
	told  chan arrival
}

type arrival struct {
	message int
	at      time.Time
}

func newReaders(tb testing.TB) *readers {
	r := &readers{tb: tb, told: make(chan arrival, 1<<16)}
	tb.Cleanup(r.close)
	return r
}

func (r *readers) close() {
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

// open dials, says hello, and reads on once begun has seen that the other side listens.
func (r *readers) open(address, hello string, begun func(*bufio.Reader) error) {
	r.tb.Helper()
	var dial net.Dialer
	conn, err := dial.DialContext(r.tb.Context(), "tcp", address)
	must(r.tb, err)
	r.conns = append(r.conns, conn)
	_, err = io.WriteString(conn, hello)
	must(r.tb, err)
	in := bufio.NewReaderSize(conn, 16<<10)
	must(r.tb, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	must(r.tb, begun(in))
	must(r.tb, conn.SetReadDeadline(time.Time{}))
	go r.read(in)
}

// read looks for stamps in whatever arrives.
func (r *readers) read(in io.Reader) {
	piece, tail := make([]byte, 16<<10), []byte(nil)
	for {
		n, err := in.Read(piece)
		if err != nil {
			return
		}
		now := time.Now()
		said := append(tail, piece[:n]...)
		for {
			i := bytes.Index(said, []byte(stamp))
			if i < 0 || len(said) < i+len(stamp)+stampDigits {
				break
			}
			number := 0
			for _, d := range said[i+len(stamp) : i+len(stamp)+stampDigits] {
				number = 10*number + int(d-'0')
			}
			r.told <- arrival{number, now}
			said = said[i+len(stamp)+stampDigits:]
		}
		tail = append(tail[:0], said[max(0, len(said)-len(stamp)-stampDigits):]...)
	}
}

// wait returns what n connections were told of a message.
func (r *readers) wait(n int) []arrival {
	r.tb.Helper()
	hang := time.NewTimer(time.Minute)
	defer hang.Stop()
	out := make([]arrival, 0, n)
	for len(out) < n {
		select {
		case a := <-r.told:
			out = append(out, a)
		case <-hang.C:
			r.tb.Fatalf("%d of %d were told within a minute", len(out), n)
		}
	}
	return out
}

// ask is a SubscribeComms as bytes: the Connect protocol over HTTP/1.1.
func ask(host, token string) string {
	body := make([]byte, 5) // an empty request: no flags, no length
	binary.BigEndian.PutUint32(body[1:], 0)
	return "POST /compass.v1.CommsService/SubscribeComms HTTP/1.1\r\nHost: " + host + "\r\nAuthorization: Bearer " + token +
		"\r\nContent-Type: application/connect+proto\r\nConnect-Protocol-Version: 1\r\nContent-Length: 5\r\n\r\n" + string(body)
}

// streaming waits for the answer's head and its first word, the heartbeat.
func streaming(in *bufio.Reader) error {
	status, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	if !bytes.Contains([]byte(status), []byte(" 200 ")) {
		return fmt.Errorf("answered %q", status)
	}
	for line := status; line != "\r\n"; {
		if line, err = in.ReadString('\n'); err != nil {
			return err
		}
	}
	_, err = in.ReadString('\n') // the size of the first chunk
	return err
}

// subscribed waits for the answer to a ping behind the subscription.
func subscribed(in *bufio.Reader) error {
	for {
		line, err := in.ReadString('\n')
		if err != nil || line == "PONG\r\n" {
			return err
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
