package store

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// reads are the ways in which something is read from the database where a tenant lives.
func reads(ctx context.Context, s *Store) map[string]func(sql string) error {
	take := func(rows pgx.Rows, err error) error {
		if err != nil {
			return err
		}
		_, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}
	in := func(read func(ctx context.Context, tx pgx.Tx) error) error { return s.inTenantTx(ctx, read) }
	return map[string]func(string) error{
		"query": func(sql string) error { _, err := query(ctx, s, pgx.RowTo[string], sql); return err },
		"do": func(sql string) error {
			return s.do(ctx, func(b *pgx.Batch) { b.Queue(sql).Query(func(rows pgx.Rows) error { return take(rows, nil) }) })
		},
		"transaction": func(sql string) error {
			return in(func(ctx context.Context, tx pgx.Tx) error { return take(tx.Query(ctx, sql)) })
		},
		"later in a transaction": func(sql string) error {
			return in(func(ctx context.Context, tx pgx.Tx) error {
				if err := take(tx.Query(ctx, sqlHandles)); err != nil {
					return fmt.Errorf("the first statement: %w", err)
				}
				return take(tx.Query(ctx, sql))
			})
		},
		"batch in a transaction": func(sql string) error {
			return in(func(ctx context.Context, tx pgx.Tx) error {
				b := &pgx.Batch{}
				b.Queue(sql).Query(func(rows pgx.Rows) error { return take(rows, nil) })
				return tx.SendBatch(ctx, b).Close()
			})
		},
		"direct connection": func(sql string) error {
			conn, err := s.directConn(ctx, 1)
			if err != nil {
				return err
			}
			defer conn.Close(context.WithoutCancel(ctx))
			return take(conn.Query(ctx, sql))
		},
		"system": func(sql string) error {
			_, err := systemQuery(ctx, s, LoopSweep, 1, pgx.RowTo[string], sql)
			return err
		},
		"provision": func(sql string) error { _, err := provisionQuery(ctx, s, 1, pgx.RowTo[string], sql); return err },
		"platform":  func(sql string) error { _, err := platformQuery(ctx, s, 1, pgx.RowTo[string], sql); return err },
	}
}

const tooManyRows = `select i::text from generate_series(1, 100001) i`

// straightPair is a pair without a pooler: what is bounded is what comes over a connection, whoever is at its end.
func straightPair(t *testing.T) *pair {
	t.Helper()
	p := newPair(t)
	p.proxy = storetest.NewProxy(t, p.one.Straight(t, p.one.App), 0)
	return p
}

// newForeign is a pair whose second database a store reaches with every right, through the proxy.
func newForeign(t *testing.T) (*pair, *Store) {
	t.Helper()
	p := straightPair(t)
	return p, p.open(t, func(c *Config) {
		c.Limits = func(TenantID) Limits { return Limits{StatementTimeout: time.Minute} }
		one := &c.Databases[1]
		one.System, one.Provision, one.Direct = p.proxy.Through(t, p.one.System), p.proxy.Through(t, p.one.Provision), p.proxy.Through(t, p.one.Direct)
	})
}

// A tenant's own database may answer anything; what it may cost is bounded, whichever way it is asked, and the shared one
// is not (design section 5).
func TestForeignDatabaseIsBounded(t *testing.T) {
	t.Parallel()
	_, s := newForeign(t)
	a, b := WithTenant(t.Context(), tenantA), WithTenant(t.Context(), tenantB)
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, errTooMuch) || !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable and why", what, err)
		}
	}
	for _, pool := range s.databases[1].pools() {
		pool.patience = 5 * time.Minute // the machine may be slow
	}
	for way, read := range reads(b, s) {
		refused(way+", rows without end", read(tooManyRows))
	}
	for name, sql := range map[string]string{
		"one huge row": `select repeat('x', 80 * 1024 * 1024)`,
		"bytes in all": `select repeat('x', 4 * 1024 * 1024) from generate_series(1, 70)`,
	} {
		_, err := query(b, s, pgx.RowTo[string], sql)
		refused(name, err)
	}
	rows, err := query(a, s, pgx.RowTo[string], tooManyRows)
	if err != nil || len(rows) != 100001 {
		t.Errorf("the shared database: %d rows, %v", len(rows), err)
	}
}

// What was asked for in between counts anew, in each exec mode.
func TestForeignDatabaseAnswersMany(t *testing.T) {
	t.Parallel()
	p := straightPair(t)
	for _, mode := range []string{"statement", "describe", "exec"} {
		s := p.open(t, func(c *Config) { c.ExecMode, c.Databases[0].App = mode, p.zero.Straight(t, p.zero.App) })
		for range 3 {
			rows, err := query(WithTenant(t.Context(), tenantB), s, pgx.RowTo[string], `select i::text from generate_series(1, 60000) i`)
			if err != nil || len(rows) != 60000 {
				t.Errorf("%s: %d rows, %v", mode, len(rows), err)
			}
		}
	}
}

// The time that a database of somebody else's has for one call ends every kind of call, and nobody else's.
func TestForeignDatabaseThatIsSilent(t *testing.T) {
	t.Parallel()
	p, s := newForeign(t)
	ctx, cancel := context.WithTimeout(WithTenant(t.Context(), tenantB), 2*time.Minute)
	defer cancel()
	silent := func(silent bool) {
		for _, pool := range s.databases[1].pools() {
			if pool.patience = foreignTime; silent {
				pool.patience = 300 * time.Millisecond
			}
		}
		p.proxy.Pause(silent)
	}
	defer silent(false)
	for _, pool := range s.databases[1].pools() {
		if pool.patience != foreignTime {
			t.Errorf("%s: patience of %v", pool.right, pool.patience)
		}
	}
	fence := Fence{Stream: "main"}
	calls := map[string]func() error{
		"writerDo":    func() error { return s.writerDo(ctx, fence, func(b *pgx.Batch) { b.Queue(`select 1`) }) },
		"provisionDo": func() error { return s.provisionDo(ctx, 1, func(b *pgx.Batch) { b.Queue(`select 1`) }) },
	}
	for way, read := range reads(ctx, s) {
		calls[way] = func() error { return read(`select 'x'`) }
	}
	for name, call := range calls {
		silent(false)
		// It falls silent with a connection open: one that cannot be opened has a time of its own.
		if err := call(); err != nil && !errors.Is(err, ErrStaleWriter) {
			t.Fatalf("%s: %v", name, err)
		}
		silent(true)
		if err := call(); ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s of a database that is silent: %v, want it to end", name, err)
		}
	}
	if _, err := handlesOf(t.Context(), s, tenantA); err != nil {
		t.Errorf("the living database's tenant: %v", err)
	}
}

// How the bytes of an answer happen to arrive does not change what is counted.
func TestMeterFollowsTheProtocol(t *testing.T) {
	t.Parallel()
	var answer []byte
	for range 7 {
		row, err := (&pgproto3.DataRow{Values: [][]byte{[]byte("DDDDDDDD")}}).Encode(nil)
		if err != nil {
			t.Fatal(err)
		}
		answer = append(append(answer, row...), 'C', 0, 0, 0, 4) // an empty body follows each row
	}
	for name, arrives := range map[string]func(io.Reader) io.Reader{
		"at once": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader, "in halves": iotest.HalfReader,
	} {
		m := &meter{r: arrives(bytes.NewReader(answer)), w: io.Discard}
		if got, err := io.ReadAll(m); err != nil || !bytes.Equal(got, answer) || m.rows != 7 || m.bytes != len(answer) {
			t.Errorf("%s: %d rows and %d bytes of 7 and %d (%v)", name, m.rows, m.bytes, len(answer), err)
		}
		if _, err := m.Write(nil); err != nil || m.rows != 0 || m.bytes != 0 {
			t.Errorf("%s: the next answer begins at %d rows and %d bytes", name, m.rows, m.bytes)
		}
	}
	secured := &meter{}
	if meterOf(tls.Client(metered{meter: secured}, &tls.Config{})) != secured { //nolint:gosec // no handshake takes place
		t.Error("the meter of a connection with TLS is not found")
	}
	huge := binary.BigEndian.AppendUint32([]byte{'D'}, foreignMessage+5)
	if _, err := (&meter{r: bytes.NewReader(huge)}).Read(make([]byte, 64)); !errors.Is(err, errTooMuch) {
		t.Errorf("a message that says it is too long: %v, want it refused before its body", err)
	}
}
