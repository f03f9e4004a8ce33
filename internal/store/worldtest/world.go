package worldtest

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// World is one database and a store on it.
type World struct {
	Store    *store.Store
	Database *storetest.Database
	IDs      *naming.IDs

	mu    sync.Mutex
	super *pgx.Conn
}

// New makes a database with the bootstrap tenant and opens a store on it.
func New(tb testing.TB) *World {
	tb.Helper()
	return On(tb, storetest.NewDatabase(tb))
}

// On is New on a database that the test has made.
func On(tb testing.TB, db *storetest.Database) *World {
	tb.Helper()
	s, err := store.Open(tb.Context(), store.Config{
		Databases: []store.Database{{App: db.App, System: db.System, Provision: db.Provision, Direct: db.Direct}},
		Limits: func(store.TenantID) store.Limits {
			return store.Limits{StatementTimeout: time.Minute, Transactions: 16}
		},
	})
	check(tb, err)
	tb.Cleanup(s.Close)
	_, err = s.BootstrapTenant(tb.Context())
	check(tb, err)
	ids := &naming.IDs{Now: time.Now, Rand: rand.Reader}
	return &World{
		Store: s, Database: db, IDs: ids, super: storetest.Connect(tb, db.Super),
	}
}

// Tenant is a tenant and its first admin.
type Tenant struct {
	World *World
	ID    store.TenantID
	Slug  string
	Admin store.Account
	Token string          // the admin's
	Ctx   context.Context //nolint:containedctx // a test's, scoped to the tenant
}

// Tenant makes a tenant that stream "main" carries.
func (w *World) Tenant(tb testing.TB, slug string) *Tenant {
	tb.Helper()
	n := store.NewTenant{ID: store.TenantID(w.IDs.Tenant()), Slug: slug, Stream: "main", Actor: "test"}
	n.Admin = store.Account{ID: w.IDs.Account(), Handle: "admin"}
	token, err := w.IDs.Token(string(n.ID))
	check(tb, err)
	n.Token = store.NewToken{ID: w.IDs.TokenID(), Hash: naming.TokenHash(token)}
	check(tb, w.Store.CreateTenant(tb.Context(), n))
	tenant := &Tenant{World: w, ID: n.ID, Slug: slug, Token: token, Ctx: store.WithTenant(tb.Context(), n.ID)}
	tenant.Admin, err = w.Store.AccountByID(tenant.Ctx, n.Admin.ID)
	check(tb, err)
	return tenant
}

// Platform makes an admin of the bootstrap tenant.
func (w *World) Platform(tb testing.TB) *Tenant {
	tb.Helper()
	id := store.BootstrapTenantID
	token, err := w.IDs.Token(string(id))
	check(tb, err)
	admin := store.Account{ID: w.IDs.Account(), Handle: "root"}
	check(tb, w.Store.EnsureAdmin(tb.Context(), id, admin, store.NewToken{ID: w.IDs.TokenID(), Hash: naming.TokenHash(token)}))
	tenant := &Tenant{World: w, ID: id, Slug: naming.SystemSlug, Token: token, Ctx: store.WithTenant(tb.Context(), id)}
	tenant.Admin, err = w.Store.AccountByID(tenant.Ctx, admin.ID)
	check(tb, err)
	return tenant
}

// Person makes a person with that handle.
func (n *Tenant) Person(tb testing.TB, handle string) store.Account {
	return n.account(tb, store.KindPerson, handle)
}

// Agent makes an agent with that handle.
func (n *Tenant) Agent(tb testing.TB, handle string) store.Account {
	return n.account(tb, store.KindAgent, handle)
}

func (n *Tenant) account(tb testing.TB, kind store.AccountKind, handle string) store.Account {
	tb.Helper()
	a, err := n.World.Store.CreateAccount(n.Ctx, store.Account{
		ID: n.World.IDs.Account(), Kind: kind, Role: store.RoleMember, Handle: handle, Wake: store.WakeManual,
	}, n.Admin.ID)
	check(tb, err)
	return a
}

// TokenOf issues a bearer token for an account.
func (n *Tenant) TokenOf(tb testing.TB, account store.Account) (id, token string) {
	tb.Helper()
	token, err := n.World.IDs.Token(string(n.ID))
	check(tb, err)
	id = n.World.IDs.TokenID()
	check(tb, n.World.Store.AddToken(n.Ctx, store.NewToken{
		ID: id, Account: account.ID, Hash: naming.TokenHash(token), Actor: n.Admin.ID,
	}))
	return id, token
}

// Channel makes a channel of the admin's with these members beside him.
func (n *Tenant) Channel(tb testing.TB, name string, members ...store.Account) store.Channel {
	tb.Helper()
	c, err := n.World.Store.CreateChannel(n.Ctx, store.Channel{ID: n.World.IDs.Channel(), Name: name, CreatedBy: n.Admin.ID})
	check(tb, err)
	for _, m := range members {
		check(tb, n.World.Store.AddMember(n.Ctx, store.Member{Channel: c.ID, Account: m.ID, Actor: n.Admin.ID}))
	}
	return c
}

// Message is a new message of text, with a client id of its own.
func (n *Tenant) Message(author store.Account, channel store.Channel, text string) store.NewMessage {
	id := n.World.IDs.Message()
	return store.NewMessage{ID: id, Channel: channel.ID, Author: author.ID, ClientID: id, Blocks: []store.Block{store.Text(text)}}
}

// Post makes a message outside a turn.
func (n *Tenant) Post(tb testing.TB, author store.Account, channel store.Channel, text string) store.Message {
	tb.Helper()
	m, _, _, err := n.World.Store.AppendMessage(n.Ctx, n.Message(author, channel, text))
	check(tb, err)
	return m
}

// Session is a session that a Runner runs. It numbers its events, one call after the other.
type Session struct {
	ID         string
	Agent      store.Account
	Generation int64
	Runner     string
	n          int64
}

// Next is the session's next event.
func (s *Session) Next() store.Event {
	s.n++
	return s.Last()
}

// Last is the event before the next, as a repeat would send it.
func (s *Session) Last() store.Event {
	return store.Event{Session: s.ID, Generation: s.Generation, Runner: s.Runner, N: s.n}
}

// In is a call in a turn with the next event.
func (s *Session) In(turn string) *store.InTurn { return &store.InTurn{Event: s.Next(), Turn: turn} }

// Session starts a session of the agent on a Runner of its own.
func (n *Tenant) Session(tb testing.TB, agent store.Account) *Session {
	tb.Helper()
	id, err := n.World.IDs.Session(string(n.ID))
	check(tb, err)
	generation := n.World.IDs.Now().UnixMicro()
	s := &Session{ID: id, Agent: agent, Generation: generation, Runner: n.World.IDs.Runner()}
	n.World.Exec(tb, `insert into compass.runner_leases (runner_id, fleet, incarnation, expires_at)
		values ($1, 'shared', 1, 'infinity')`, s.Runner)
	n.World.Exec(tb, `insert into compass.agent_placements (tenant_id, agent_id, runner_id, session_id, generation)
		values ($1, $2, $3, $4, $5)`, n.ID, agent.ID, s.Runner, s.ID, s.Generation)
	n.World.Exec(tb, `insert into compass.session_bindings (tenant_id, session_id, agent_account_id, runner_id, incarnation, generation, claimed)
		values ($1, $2, $3, $4, 1, $5, true)`, n.ID, s.ID, agent.ID, s.Runner, s.Generation)
	return s
}

// Exec writes as a superuser, past every policy.
func (w *World) Exec(tb testing.TB, sql string, args ...any) {
	tb.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.super.Exec(tb.Context(), sql, args...)
	check(tb, err)
}

// Strings reads one column as a superuser.
func (w *World) Strings(tb testing.TB, sql string, args ...any) []string {
	tb.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	rows, err := w.super.Query(tb.Context(), sql, args...)
	check(tb, err)
	defer rows.Close()
	out := []string{}
	for rows.Next() {
		var s string
		check(tb, rows.Scan(&s))
		out = append(out, s)
	}
	check(tb, rows.Err())
	return out
}

// Count reads one number as a superuser.
func (w *World) Count(tb testing.TB, sql string, args ...any) int {
	tb.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var n int
	check(tb, w.super.QueryRow(tb.Context(), sql, args...).Scan(&n))
	return n
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
