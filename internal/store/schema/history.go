package schema

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/pg"
)

// FileError says which file failed, and where. Nothing of the file was kept.
type FileError struct {
	File      string
	Statement int    // from 1, 0 where the commit failed
	Line      int    // where the statement, or the place in it, stands
	Opening   string // how the statement begins
	Err       error
}

func (e *FileError) Error() string {
	if e.Statement == 0 {
		return fmt.Sprintf("%s: at its commit: %v", e.File, e.Err)
	}
	return fmt.Sprintf("%s:%d: statement %d (%s): %v", e.File, e.Line, e.Statement, e.Opening, e.Err)
}

func (e *FileError) Unwrap() error { return e.Err }

// run sends the file as one message, so that what runs is the file and not our idea of where its statements end; the
// results that came back before an error tell which statement failed.
func (m Migration) run(ctx context.Context, conn *pgx.Conn, roles naming.Roles) error {
	sql, err := m.render(roles)
	if err != nil {
		return &FileError{File: m.Name, Statement: 1, Line: 1, Err: err}
	}
	results := conn.PgConn().Exec(ctx, sql)
	done := 0
	for results.NextResult() {
		if _, err := results.ResultReader().Close(); err == nil {
			done++
		}
	}
	if err := results.Close(); err != nil {
		return m.locate(sql, done, err)
	}
	return nil
}

func (m Migration) locate(sql string, done int, err error) *FileError {
	all := statements(sql)
	fail := &FileError{File: m.Name, Statement: done + 1, Err: err}
	var position int
	if pgErr := asPgError(err); pgErr != nil && pgErr.Position > 0 {
		position = byteOffset(sql, int(pgErr.Position)-1)
		for i, s := range all {
			if position < s.end {
				fail.Statement = i + 1
				break
			}
		}
	}
	if fail.Statement <= len(all) {
		s := all[fail.Statement-1]
		fail.Line, fail.Opening = s.line, s.opening()
	}
	return fail
}

// byteOffset turns an offset in characters, which Postgres counts in, into one in bytes.
func byteOffset(sql string, chars int) int {
	at := 0
	for ; chars > 0 && at < len(sql); chars-- {
		_, n := utf8.DecodeRuneInString(sql[at:])
		at += n
	}
	return at
}

const (
	createHistory = `create table compass.schema_migrations (
    version            integer primary key,
    name               text not null,
    sha256             text not null,
    serves             integer not null,
    applied_at_unix_ms bigint not null
)`
	insertHistory = `insert into compass.schema_migrations (version, name, sha256, serves, applied_at_unix_ms)
values ($1, $2, $3, $4, (extract(epoch from pg_catalog.clock_timestamp()) * 1000)::bigint)`
	selectHistory = `select version, name, sha256, serves, applied_at_unix_ms from compass.schema_migrations order by version`
	// The rows themselves are asked: to_regclass goes by what the connection remembers, and a wait for an advisory lock does
	// not make it look again.
	historyThere = `select exists (select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = 'compass' and c.relname = 'schema_migrations')`
)

// record notes the file in the same transaction; the first one also makes the table, in the schema that it just made.
func record(ctx context.Context, tx pgx.Tx, m Migration, roles naming.Roles) error {
	var there bool
	if err := tx.QueryRow(ctx, historyThere).Scan(&there); err != nil {
		return err
	}
	if !there {
		if _, err := tx.Exec(ctx, createHistory); err != nil {
			return err
		}
		grant := fmt.Sprintf("grant select on compass.schema_migrations to %s, %s, %s",
			pg.Ident(roles.App), pg.Ident(roles.System), pg.Ident(roles.Provision))
		if _, err := tx.Exec(ctx, grant); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, insertHistory, m.Version, m.Name, m.Sum, m.Serves)
	return err
}

func readHistory(ctx context.Context, conn *pgx.Conn) ([]Applied, error) {
	var there bool
	if err := conn.QueryRow(ctx, historyThere).Scan(&there); err != nil || !there {
		return nil, err
	}
	rows, err := conn.Query(ctx, selectHistory)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Applied])
}

// status compares what was applied with the files. Files that a newer binary applied are fine; a file of ours that was
// applied with another text, or passed over, is not.
func (r *Runner) status(ctx context.Context, conn *pgx.Conn) (Status, error) {
	applied, err := readHistory(ctx, conn)
	if err != nil {
		return Status{}, pg.Interpret(err)
	}
	st := Status{Applied: applied, Latest: r.o.Migrations[len(r.o.Migrations)-1].Version}
	by := map[int]Applied{}
	for _, a := range applied {
		by[a.Version] = a
		st.Version, st.Serves = max(st.Version, a.Version), max(st.Serves, a.Serves)
	}
	for _, m := range r.o.Migrations {
		a, done := by[m.Version]
		switch {
		case done && a.Sum != m.Sum:
			return st, fmt.Errorf("%w: %s was applied with another text (%s… there, %s… here): "+
				"a released migration never changes, put the change into a new file", pg.ErrSchema, m.Name, short(a.Sum), short(m.Sum))
		case !done && m.Version < st.Version:
			return st, fmt.Errorf("%w: %s was never applied but version %04d was: give it a number above that",
				pg.ErrSchema, m.Name, st.Version)
		case !done:
			st.Pending = append(st.Pending, m)
		}
	}
	return st, nil
}

// short is enough of a digest to tell two apart; what stands in the table may be anything.
func short(sum string) string { return sum[:min(8, len(sum))] }

func asPgError(err error) *pgconn.PgError {
	pgErr, _ := err.(*pgconn.PgError) //nolint:errorlint // what the connection returns is not wrapped
	return pgErr
}
