package store

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
)

// A database other than 0 may be a tenant's own, and whoever administers it can make it answer anything, or nothing, or
// without end. So what is read from it is bounded in rows, in bytes and in time, whatever its own limits say; a call that
// meets a bound fails as if the database were away, and its tenants alone feel it (REQ-239).
const (
	foreignRows    = 100_000
	foreignBytes   = 256 << 20 // of one answer
	foreignMessage = 64 << 20  // of one row; its length is judged before there is room for it
	foreignTime    = 30 * time.Second
)

var errTooMuch = fmt.Errorf("%w: it answered with more than can have been asked for", ErrUnavailable)

// distrust makes a connection end where the answer to what was sent last is too much. It is said of the connection and not
// of a door, so that no way of reading is left out.
func distrust(config *pgx.ConnConfig) {
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return metered{Conn: conn, meter: &meter{}}, nil
	}
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		m := meterOf(w)
		m.r, m.w = r, w
		return pgproto3.NewFrontend(m, m)
	}
	config.Tracer = batches{}
}

// metered carries its meter to whoever has the connection. It stands below TLS, because the binding of SCRAM to a channel
// looks for that in the uppermost one, and what is metered stands above.
type metered struct {
	net.Conn
	meter *meter
}

func meterOf(w io.Writer) *meter {
	if secure, ok := w.(*tls.Conn); ok {
		w = secure.NetConn()
	}
	return w.(metered).meter //nolint:forcetypeassert // distrust made it
}

// batches tells a meter of batches: in the exec mode without prepared statements, they are written past it.
type batches struct{}

func (batches) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (batches) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (batches) TraceBatchStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	meterOf(conn.PgConn().Conn()).restart()
	return ctx
}

func (batches) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (batches) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// meter counts what comes in answer to what was sent last. It follows the messages of the protocol: a letter, a length that
// counts itself, and a body.
type meter struct {
	r io.Reader
	w io.Writer

	rows, bytes int
	head        []byte // of the message that begins
	body        int    // what is to come of the one that has begun
	err         error
}

func (m *meter) restart() { m.rows, m.bytes = 0, 0 }

func (m *meter) Write(p []byte) (int, error) {
	m.restart()
	return m.w.Write(p)
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if m.count(p[:n]); m.err != nil {
		return 0, m.err
	}
	return n, err
}

func (m *meter) count(p []byte) {
	m.bytes += len(p)
	for len(p) > 0 && m.err == nil {
		if m.body > 0 {
			n := min(m.body, len(p))
			m.body, p = m.body-n, p[n:]
			continue
		}
		n := min(5-len(m.head), len(p))
		if m.head, p = append(m.head, p[:n]...), p[n:]; len(m.head) == 5 {
			m.begin()
		}
	}
	if m.rows > foreignRows || m.bytes > foreignBytes {
		m.err = errTooMuch
	}
}

func (m *meter) begin() {
	if m.head[0] == 'D' {
		m.rows++
	}
	m.body = max(0, int(binary.BigEndian.Uint32(m.head[1:]))-4)
	m.head = m.head[:0]
	if m.body > foreignMessage {
		m.err = errTooMuch
	}
}
