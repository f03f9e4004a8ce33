package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	sqlAccountColumns = ` a.id, a.kind, a.role, a.handle, a.display_name, a.wake, a.created_at_unix_ms, coalesce(a.deleted_at_unix_ms, 0)`

	// Under the tenant's scope compass.tenants is one row: the tenant itself (REQ-094: an account is stamped with it).
	sqlInsertAccount = `
with made as (
    insert into compass.accounts as a (tenant_id, id, kind, role, handle, display_name, wake)
    select t.id, $1, $2, $3, $4, $5, $6 from compass.tenants t
    returning a.tenant_id, a.id, a.kind, a.role, a.handle, a.display_name, a.wake, a.created_at_unix_ms, a.deleted_at_unix_ms
), noted as (
    insert into compass.audit_log (tenant_id, actor, action, detail)
    select a.tenant_id, $7, 'account.create', jsonb_build_object('account', a.id, 'role', a.role) from made a
)
select` + sqlAccountColumns + ` from made a`

	sqlAccountByID = `select` + sqlAccountColumns + ` from compass.accounts a where a.id = $1 and a.deleted_at_unix_ms is null`

	sqlListAccounts = `
select` + sqlAccountColumns + ` from compass.accounts a
 where a.deleted_at_unix_ms is null and a.id > $1 order by a.id limit $2`

	// Two admins who demote each other wait here for each other. NO KEY: the foreign keys of posts are not held up.
	sqlLockAdmins = `
select a.id from compass.accounts a where a.role = 'admin' and a.deleted_at_unix_ms is null order by a.id for no key update`

	// A session of the account starts under this lock or not at all.
	sqlLockAccount = `select a.deleted_at_unix_ms is null from compass.accounts a where a.id = $1 for no key update`

	sqlSetRole = `
with changed as (
    update compass.accounts a set role = $2 where a.id = $1 and a.deleted_at_unix_ms is null
    returning a.tenant_id, a.id, a.kind, a.role, a.handle, a.display_name, a.wake, a.created_at_unix_ms, a.deleted_at_unix_ms
), noted as (
    insert into compass.audit_log (tenant_id, actor, action, detail)
    select a.tenant_id, $3, 'account.role', jsonb_build_object('account', a.id, 'role', a.role) from changed a
)
select` + sqlAccountColumns + ` from changed a`

	sqlDeleteAccount = `
with gone as (
    update compass.accounts a set deleted_at_unix_ms = compass.unix_ms() where a.id = $1 and a.deleted_at_unix_ms is null
    returning a.tenant_id, a.id
), tokens as (
    update compass.account_tokens k set revoked_at_unix_ms = compass.unix_ms()
      from gone g where k.tenant_id = g.tenant_id and k.account_id = g.id and k.revoked_at_unix_ms is null
), channels as (
    delete from compass.channel_members cm using gone g where cm.tenant_id = g.tenant_id and cm.account_id = g.id
), owed as (
    delete from compass.owed_mentions o using gone g where o.tenant_id = g.tenant_id and o.agent_id = g.id
), dead as (
    delete from compass.dead_letters d using gone g where d.tenant_id = g.tenant_id and d.recipient_id = g.id
), noted as (
    insert into compass.audit_log (tenant_id, actor, action, detail)
    select g.tenant_id, $2, 'account.delete', jsonb_build_object('account', g.id) from gone g
)
select from gone`
)

// CreateAccount makes a person or an agent of the tenant in the context. ErrConflict where the handle is taken, also by a
// deleted account: what it wrote still bears the handle.
func (s *Store) CreateAccount(ctx context.Context, a Account, actor string) (Account, error) {
	made, err := queryOne(ctx, s, scanAccount, sqlInsertAccount, a.ID, a.Kind, a.Role, a.Handle, a.DisplayName, a.Wake, actor)
	return made, wrapf(err, "create account %q", a.Handle)
}

// AccountByID reads an account that was not deleted. ErrNotFound.
func (s *Store) AccountByID(ctx context.Context, id string) (Account, error) {
	a, err := queryOne(ctx, s, scanAccount, sqlAccountByID, id)
	return a, wrapf(err, "read account %s", id)
}

// ListAccounts lists the tenant's accounts in order of id.
func (s *Store) ListAccounts(ctx context.Context, page Page) ([]Account, string, error) {
	rows, err := query(ctx, s, scanAccount, sqlListAccounts, page.After, page.Limit+1)
	if err != nil {
		return nil, "", wrapf(err, "list accounts")
	}
	rows, next := cut(page, rows, func(a Account) string { return a.ID })
	return rows, next, nil
}

// SetRole changes what an account may do. ErrNotFound. ErrPrecondition where the tenant would be left without an admin.
func (s *Store) SetRole(ctx context.Context, id string, role Role, actor string) (Account, error) {
	var out Account
	err := s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := keepAnAdmin(ctx, tx, id, role); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, sqlSetRole, id, role, actor)
		var err error
		out, err = pgx.CollectExactlyOneRow(rows, scanAccount)
		return err
	})
	return out, wrapf(err, "set role of %s", id)
}

// keepAnAdmin locks the tenant's admins and refuses to take the role from the last one.
func keepAnAdmin(ctx context.Context, tx pgx.Tx, id string, role Role) error {
	rows, _ := tx.Query(ctx, sqlLockAdmins)
	admins, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if role != RoleAdmin && len(admins) == 1 && admins[0] == id {
		return fmt.Errorf("%w: it is the tenant's last admin", ErrPrecondition)
	}
	return nil
}

func scanAccount(row pgx.CollectableRow) (Account, error) {
	var a Account
	err := row.Scan(&a.ID, &a.Kind, &a.Role, &a.Handle, &a.DisplayName, &a.Wake, &a.CreatedAtUnixMs, &a.DeletedAtUnixMs)
	return a, err
}

// DeleteAccount ends an account's tokens, sessions and memberships and what is owed to it; what it wrote stays, and what
// its open turn held is deliverable from then on: publish touched. Idempotent. ErrNotFound where there never was one.
// ErrPrecondition for the tenant's last admin.
func (s *Store) DeleteAccount(ctx context.Context, id, actor string) (touched []Touched, err error) {
	err = s.inTenantTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err := keepAnAdmin(ctx, tx, id, RoleMember); err != nil {
			return err
		}
		var there bool
		if err := tx.QueryRow(ctx, sqlLockAccount, id).Scan(&there); err != nil || !there {
			return err
		}
		if touched, err = endSessionOf(ctx, tx, id, SettledBySessionEnd); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, sqlDeleteAccount, id, actor)
		return err
	})
	if err != nil {
		return nil, wrapf(err, "delete account %s", id)
	}
	return touched, nil
}
