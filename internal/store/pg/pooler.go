package pg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Pooler is what stands between a connection and the server.
type Pooler struct {
	Present bool // the process we talk to is not the one that executes
	Tracked bool // it follows named prepared statements (PgBouncer 1.21 and later with max_prepared_statements > 0)
}

// DetectPooler tells whether a connection goes through a pooler. A pooler answers with a process id of its own, and one
// that tracks prepared statements renames them; both are facts, not timings. What it cannot recognise it calls untracked,
// which is the safe reading. It needs a connection outside a transaction.
func DetectPooler(ctx context.Context, conn *pgx.Conn) (Pooler, error) {
	raw := conn.PgConn()
	backend, err := simpleValue(ctx, raw, "select pg_catalog.pg_backend_pid()")
	if err != nil {
		return Pooler{}, fmt.Errorf("detect pooler: %w", Interpret(err))
	}
	if backend == fmt.Sprint(raw.PID()) {
		return Pooler{}, nil
	}
	tracked, err := tracksStatements(ctx, raw)
	if err != nil {
		return Pooler{}, fmt.Errorf("detect pooler: %w", Interpret(err))
	}
	return Pooler{Present: true, Tracked: tracked}, nil
}

// tracksStatements prepares a name and looks under which one the server knows it. The transaction pins one server
// connection, and its own DEALLOCATE leaves nothing behind there. The name is random because an earlier probe that was
// cut off may have left one.
func tracksStatements(ctx context.Context, raw *pgconn.PgConn) (bool, error) {
	name := "compass_probe_" + strings.ToLower(rand.Text())
	if _, err := raw.Exec(ctx, "begin").ReadAll(); err != nil {
		return false, err
	}
	tracked, err := func() (bool, error) {
		if _, err := raw.Prepare(ctx, name, "select 1", nil); err != nil {
			return false, err
		}
		own, err := simpleValue(ctx, raw, "select count(*) from pg_catalog.pg_prepared_statements where name = '"+name+"'")
		if err != nil {
			return false, err
		}
		if own != "0" {
			_, err = raw.Exec(ctx, "deallocate "+name).ReadAll()
			return false, err
		}
		renamed, err := simpleValue(ctx, raw, `select count(*) from pg_catalog.pg_prepared_statements where name like 'PGBOUNCER\_%'`)
		return renamed != "0", err
	}()
	_, rollbackErr := raw.Exec(ctx, "rollback").ReadAll()
	return tracked, errors.Join(err, rollbackErr)
}

func simpleValue(ctx context.Context, raw *pgconn.PgConn, sql string) (string, error) {
	results, err := raw.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != 1 {
		return "", fmt.Errorf("unexpected answer to %q", sql)
	}
	return string(results[0].Rows[0][0]), nil
}

// ConnectDirect opens one connection that no pooler may stand in front of: locks, leases and migrations need a session
// of their own.
func ConnectDirect(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	pooled := fmt.Errorf("connect to %s:%d: a connection pooler answers here, and this needs a session of its own: "+
		"give the address of the Postgres server itself", config.Host, config.Port)
	conn, err := pgx.ConnectConfig(ctx, config)
	if Code(err) == "08P01" { // a startup setting that Postgres knows and a pooler does not
		return nil, pooled
	}
	if err != nil {
		return nil, Interpret(err)
	}
	pooler, err := DetectPooler(ctx, conn)
	if err == nil && pooler.Present {
		err = pooled
	}
	if err != nil {
		_ = conn.Close(ctx) // the error at hand says more
		return nil, err
	}
	return conn, nil
}
