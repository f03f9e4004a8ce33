package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// NewToken is a bearer token that is to be kept, as its hash.
type NewToken struct {
	ID      string // from naming.IDs
	Account string
	Hash    [32]byte // naming.TokenHash
	Actor   string   // who issues it, for the audit log
}

// Caller is who a bearer token speaks for.
type Caller struct {
	Tenant  TenantID
	Slug    string
	Account Account
}

// Admin reports whether the caller manages its own tenant.
func (c Caller) Admin() bool { return c.Account.Role == RoleAdmin }

// Platform reports whether the caller manages every tenant: an admin of the bootstrap tenant.
func (c Caller) Platform() bool { return c.Admin() && c.Tenant == BootstrapTenantID }

const (
	//compass:hot
	sqlAuthenticate = `
select t.id, t.slug,` + sqlAccountColumns + `
  from compass.account_tokens k
  join compass.accounts a on a.tenant_id = k.tenant_id and a.id = k.account_id
  join compass.tenants t on t.id = k.tenant_id
 where k.hash = $1 and k.revoked_at_unix_ms is null and a.deleted_at_unix_ms is null`

	sqlInsertToken = `
with made as (
    insert into compass.account_tokens (tenant_id, id, account_id, hash)
    select a.tenant_id, $1, a.id, $3 from compass.accounts a where a.id = $2 and a.deleted_at_unix_ms is null
    returning tenant_id, id, account_id
), noted as (
    insert into compass.audit_log (tenant_id, actor, action, detail)
    select m.tenant_id, $4, 'token.issue', jsonb_build_object('token', m.id, 'account', m.account_id) from made m
)
select m.id from made m`

	sqlRevokeToken = `
with changed as (
    update compass.account_tokens k set revoked_at_unix_ms = compass.unix_ms()
     where k.id = $1 and k.revoked_at_unix_ms is null
    returning k.tenant_id, k.id, k.account_id
), noted as (
    insert into compass.audit_log (tenant_id, actor, action, detail)
    select c.tenant_id, $2, 'token.revoke', jsonb_build_object('token', c.id, 'account', c.account_id) from changed c
)
select k.id from compass.account_tokens k where k.id = $1`
)

// TokenSeen is a token as the tenant has it.
type TokenSeen struct {
	ID              string
	CreatedAtUnixMs int64
	Revoked         bool
}

const sqlFindToken = `
select k.id, k.created_at_unix_ms, k.revoked_at_unix_ms is not null from compass.account_tokens k where k.hash = $1`

// FindToken finds a token of the tenant of the context by its hash, also one that was revoked. ErrNotFound.
func (s *Store) FindToken(ctx context.Context, hash [32]byte) (TokenSeen, error) {
	t, err := queryOne(ctx, s, pgx.RowToStructByPos[TokenSeen], sqlFindToken, hash[:])
	return t, wrapf(err, "find token")
}

// Authenticate finds who a token speaks for, by its hash, under the tenant of the context. That tenant came from the
// token's prefix and is no authority: where the hash is not found under it there is nobody (T5, REQ-089, REQ-238).
// ErrNotFound: unknown, revoked, of a deleted account, or of another tenant; they are not told apart.
func (s *Store) Authenticate(ctx context.Context, hash [32]byte) (Caller, error) {
	c, err := queryOne(ctx, s, scanCaller, sqlAuthenticate, hash[:])
	return c, wrapf(err, "authenticate")
}

// AddToken keeps the hash of a new token. ErrNotFound where there is no such account.
func (s *Store) AddToken(ctx context.Context, t NewToken) error {
	_, err := queryOne(ctx, s, pgx.RowTo[string], sqlInsertToken, t.ID, t.Account, t.Hash[:], t.Actor)
	return wrapf(err, "issue token for %s", t.Account)
}

// RevokeToken ends a token at once. Idempotent; ErrNotFound where the tenant has no such token.
func (s *Store) RevokeToken(ctx context.Context, id, actor string) error {
	_, err := queryOne(ctx, s, pgx.RowTo[string], sqlRevokeToken, id, actor)
	return wrapf(err, "revoke token %s", id)
}

func scanCaller(row pgx.CollectableRow) (Caller, error) {
	var c Caller
	a := &c.Account
	err := row.Scan(&c.Tenant, &c.Slug,
		&a.ID, &a.Kind, &a.Role, &a.Handle, &a.DisplayName, &a.Wake, &a.CreatedAtUnixMs, &a.DeletedAtUnixMs)
	return c, err
}
