package e2e

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// nonce is the secret half of the lease that is held.
func (h *truth) nonce() (nonce string) {
	h.tb.Helper()
	must(h.tb, h.conn.QueryRow(h.tb.Context(), `select nonce from compass.delivery_leases where stream = $1`, stream).Scan(&nonce))
	return nonce
}

// expires is until when the lease is held, by the database's clock.
func (h *truth) expires() (at time.Time) {
	h.tb.Helper()
	must(h.tb, h.conn.QueryRow(h.tb.Context(), `select expires_at from compass.delivery_leases where stream = $1`, stream).Scan(&at))
	return at
}

// attempts is how many deliveries were charged one.
func (h *truth) attempts() (n int) {
	h.tb.Helper()
	must(h.tb, h.conn.QueryRow(h.tb.Context(), `select count(*) from compass.delivery_attempts`).Scan(&n))
	return n
}

// logged reports whether Postgres has logged something for this database.
func (c *cluster) logged(words string) bool {
	c.tb.Helper()
	db := c.world.Database
	text, err := os.ReadFile(db.Server.Log)
	must(c.tb, err)
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte("@"+db.Name+" ")) && bytes.Contains(line, []byte(words)) {
			return true
		}
	}
	return false
}

// sqlReads finds what reads the clock in the database.
const sqlReads = `
select pg_get_functiondef(p.oid) from pg_proc p
 where p.pronamespace = 'compass'::regnamespace and p.prokind = 'f' and pg_get_functiondef(p.oid) like '%clock_timestamp()%'`

// shiftClock moves the database's clock, for what runs in it and for what is asked of it, and ends every connection, as a
// failover to another server does.
func (h *truth) shiftClock(by string) {
	h.tb.Helper()
	ctx := h.tb.Context()
	rows, _ := h.conn.Query(ctx, sqlReads)
	functions, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(h.tb, err)
	if len(functions) == 0 {
		h.tb.Fatal("nothing in the database reads the clock")
	}
	var name string
	must(h.tb, h.conn.QueryRow(ctx, `select current_database()`).Scan(&name))
	script := fmt.Sprintf(`
create schema apart;
grant usage on schema apart to public;
create function apart.clock_timestamp() returns timestamptz language sql volatile return pg_catalog.clock_timestamp() + interval '%s';
`, by)
	for _, right := range []string{"app", "system", "provision"} { // for what is asked from outside; each role has a path of its own
		script += fmt.Sprintf("alter role %[1]s_%[2]s in database %[1]s set search_path = apart, pg_catalog, pg_temp;\n", name, right)
	}
	for _, f := range functions {
		script += strings.ReplaceAll(strings.ReplaceAll(f, "pg_catalog.clock_timestamp()", "clock_timestamp()"), "clock_timestamp()", "apart.clock_timestamp()") + ";\n"
	}
	_, err = h.conn.Exec(ctx, script)
	must(h.tb, err)
	h.disconnect()
}

// disconnect ends every connection to the database but this one.
func (h *truth) disconnect() {
	h.tb.Helper()
	_, err := h.conn.Exec(h.tb.Context(), `
select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`)
	must(h.tb, err)
}

// elsewhere runs statements as a superuser who is in no test's database, with $ standing for this one's name.
func (c *cluster) elsewhere(statements ...string) {
	c.tb.Helper()
	conn := storetest.Connect(c.tb, c.world.Database.Server.SuperDSN)
	for _, s := range statements {
		_, err := conn.Exec(c.tb.Context(), strings.ReplaceAll(s, "$", c.world.Database.Name))
		must(c.tb, err)
	}
	must(c.tb, conn.Close(c.tb.Context()))
}

// outage keeps every process from the database while fn runs, and leads everybody back.
func (s *scene) outage(fn func(), proxies ...*proxy) {
	s.t.Helper()
	for _, p := range proxies {
		p.refuse()
	}
	s.truth.disconnect()
	must(s.t, s.truth.conn.Close(s.t.Context()))
	fn()
	s.truth.conn = storetest.Connect(s.t, s.world.Database.Super)
	for _, p := range proxies {
		p.open(host(s.t, s.world.Database.App))
	}
}
