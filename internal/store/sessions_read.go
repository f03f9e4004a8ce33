package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const (
	sqlResolveSession = `
select b.agent_account_id from compass.session_bindings b
 where b.session_id = $1 and b.generation = $2 and b.runner_id = $3 and b.live`

	sqlLiveSessions = `select` + bindingColumns + `from compass.session_bindings b where b.live order by b.session_id`

	// Session ids sort by time inside a tenant.
	sqlAllSessions = `select` + bindingColumns + `from compass.session_bindings b order by b.session_id desc limit $1`

	sqlSessionOfAgent = `select` + bindingColumns + `from compass.session_bindings b where b.agent_account_id = $1 and b.live`

	sqlSession = `select` + bindingColumns + `from compass.session_bindings b where b.session_id = $1`
)

// ResolveSessionAccount returns the agent that a Runner's session speaks for. A Runner asserts no account, so this is the
// only way to one, and it fails closed: ErrNotFound where the session is over, superseded, another Runner's or unknown
// (REQ-116, REQ-133, REQ-135).
func (s *Store) ResolveSessionAccount(ctx context.Context, ref SessionRef) (agent string, err error) {
	agent, err = queryOne(ctx, s, pgx.RowTo[string], sqlResolveSession, ref.Session, ref.Generation, ref.Runner)
	return agent, wrapf(err, "resolve session %s", ref.Session)
}

// Session reads one session, live or over. ErrNotFound.
func (s *Store) Session(ctx context.Context, session string) (Binding, error) {
	b, err := queryOne(ctx, s, scanBinding, sqlSession, session)
	return b, wrapf(err, "read session %s", session)
}

// LiveAgentSessions lists the live sessions of the tenant, oldest first (REQ-058).
func (s *Store) LiveAgentSessions(ctx context.Context) ([]Binding, error) {
	bs, err := query(ctx, s, scanBinding, sqlLiveSessions)
	return bs, wrapf(err, "list live sessions")
}

// ListSessions lists the newest sessions of the tenant, at most limit of them, also those that are over, newest first.
func (s *Store) ListSessions(ctx context.Context, limit int) ([]Binding, error) {
	bs, err := query(ctx, s, scanBinding, sqlAllSessions, limit)
	return bs, wrapf(err, "list sessions")
}

// SessionForAccount returns the live session of an agent; ErrNotFound where it has none (REQ-058).
func (s *Store) SessionForAccount(ctx context.Context, agent string) (Binding, error) {
	b, err := queryOne(ctx, s, scanBinding, sqlSessionOfAgent, agent)
	return b, wrapf(err, "find session of agent %s", agent)
}
