package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// KnownLimits remembers the database limits of tenants as they were last read. Config.Limits is asked at every call and
// must not block: give it Of, and Note what TenantLimits returns. The zero value knows nothing yet, and a nil one nothing
// ever.
type KnownLimits struct{ byTenant sync.Map }

// Of returns the limits of a tenant, DefaultLimits until they were noted.
func (k *KnownLimits) Of(id TenantID) Limits {
	if k == nil {
		return DefaultLimits
	}
	if l, ok := k.byTenant.Load(id); ok {
		return l.(Limits) //nolint:forcetypeassert // Note alone stores
	}
	return DefaultLimits
}

// Note remembers the limits of a tenant.
func (k *KnownLimits) Note(id TenantID, l Limits) {
	if k != nil {
		k.byTenant.Store(id, l)
	}
}

// Tenant is one tenant of the platform.
type Tenant struct {
	ID   TenantID
	Slug string
}

// NewTenant is a tenant that is to be made together with its first admin.
type NewTenant struct {
	ID          TenantID // from naming.IDs, as the ids below
	Slug        string
	DisplayName string
	Stream      string // who delivers for it; empty leaves that to the operator
	Database    int    // where it shall live
	Admin       Account
	Token       NewToken
	Actor       string
}

// TenantLimits are column tenants.limits: CompassTenant.spec.limits with durations in Go's form and sizes in bytes. What is
// absent has its default.
type TenantLimits struct {
	Messages MessageLimits
	Database Limits
}

// MessageLimits bound what one tenant writes through one Server.
type MessageLimits struct {
	PerSecond float64
	Burst     int
	MaxBytes  int // of one message's content
}

// DefaultMessageLimits are those of a CompassTenant that states none.
var DefaultMessageLimits = MessageLimits{PerSecond: 50, Burst: 200, MaxBytes: 256 << 10}

const (
	sqlInsertTenant    = `insert into compass.tenants (id, slug, display_name, frozen) values ($1, $2, $3, $4)`
	sqlInsertPlacement = `
insert into compass.placements (tenant_id, database_id, stream, claim) values ($1, $3, nullif($2, ''), $4)`
	sqlInsertAdmin = `
insert into compass.accounts (tenant_id, id, kind, role, handle, display_name) values ($1, $2, 'person', 'admin', $3, $4)`
	sqlInsertAdminToken = `insert into compass.account_tokens (tenant_id, id, account_id, hash) values ($1, $2, $3, $4)`
	sqlNextNumber       = `select compass.number()`
	sqlNoteTenant       = `
insert into compass.audit_log (tenant_id, actor, action, detail) values ($1, $2, 'tenant.create', jsonb_build_object('slug', $3::text))`

	// Idempotent twins of the two above, for the admin of a tenant that is there.
	sqlEnsureAdmin = `
insert into compass.accounts (tenant_id, id, kind, role, handle, display_name) values ($1, $2, 'person', 'admin', $3, $4)
on conflict do nothing`
	sqlEnsureAdminToken = `
insert into compass.account_tokens (tenant_id, id, account_id, hash)
select a.tenant_id, $2, a.id, $4 from compass.accounts a
 where a.tenant_id = $1 and a.handle = $3 and a.role = 'admin' and a.deleted_at_unix_ms is null
on conflict do nothing`

	sqlFindTenant = `select t.id, t.slug from compass.tenants t where t.id = $1 or t.slug = $1`
	sqlLimits     = `select t.limits from compass.tenants t`
)

// CreateTenant makes a tenant, its first admin and that admin's token, all or none where it lives in the shared database.
// It needs the provision right. ErrConflict where the slug is taken.
func (s *Store) CreateTenant(ctx context.Context, t NewTenant) error {
	return wrapf(s.createTenant(ctx, t), "create tenant %q", t.Slug)
}

func (s *Store) createTenant(ctx context.Context, t NewTenant) error {
	claim := int64(0)
	if t.Stream != "" {
		var err error
		if claim, err = only(provisionQuery(ctx, s, 0, pgx.RowTo[int64], sqlNextNumber)); err != nil {
			return err
		}
	}
	place := func(b *pgx.Batch) { b.Queue(sqlInsertPlacement, t.ID, t.Stream, t.Database, claim) }
	whole := func(b *pgx.Batch) {
		b.Queue(sqlInsertTenant, t.ID, t.Slug, t.DisplayName, false)
		place(b)
		b.Queue(sqlInsertAdmin, t.ID, t.Admin.ID, t.Admin.Handle, t.Admin.DisplayName)
		b.Queue(sqlInsertAdminToken, t.ID, t.Token.ID, t.Admin.ID, t.Token.Hash[:])
		b.Queue(sqlNoteTenant, t.ID, t.Actor, t.Slug)
	}
	if t.Database == 0 {
		return s.provisionDo(ctx, 0, whole)
	}
	// The slug first and the route last: nobody finds the tenant before it is whole.
	err := s.provisionDo(ctx, 0, func(b *pgx.Batch) { b.Queue(sqlInsertTenant, t.ID, t.Slug, t.DisplayName, true) })
	if err == nil {
		err = s.provisionDo(ctx, t.Database, whole)
	}
	if err == nil {
		err = s.provisionDo(ctx, 0, place)
	}
	return err
}

// EnsureAdmin makes an admin account of that handle in a tenant that is there, if it is not, and adds the token: the first
// way into a new deployment. It needs the provision right. ErrNotFound: no such tenant. ErrConflict: the handle belongs to
// an account that is no admin.
func (s *Store) EnsureAdmin(ctx context.Context, tenant TenantID, admin Account, token NewToken) error {
	var added int64
	home, err := s.homeOf(ctx, tenant)
	if err != nil {
		return wrapf(err, "ensure admin %q of tenant %s", admin.Handle, tenant)
	}
	err = s.provisionDo(ctx, home, func(b *pgx.Batch) {
		b.Queue(sqlEnsureAdmin, tenant, admin.ID, admin.Handle, admin.DisplayName)
		b.Queue(sqlEnsureAdminToken, tenant, token.ID, admin.Handle, token.Hash[:])
		b.Queue(`select count(*) from compass.account_tokens k where k.tenant_id = $1 and k.hash = $2`, tenant, token.Hash[:]).
			QueryRow(func(row pgx.Row) error { return row.Scan(&added) })
	})
	if err == nil && added == 0 {
		err = ErrConflict
	}
	return wrapf(err, "ensure admin %q of tenant %s", admin.Handle, tenant)
}

// FindTenant finds a tenant by id or slug, for platform admins: it looks across tenants and so needs the provision right.
func (s *Store) FindTenant(ctx context.Context, idOrSlug string) (Tenant, error) {
	rows, err := provisionQuery(ctx, s, 0, pgx.RowToStructByPos[Tenant], sqlFindTenant, idOrSlug)
	t, err := only(rows, err)
	return t, wrapf(err, "find tenant %q", idOrSlug)
}

// TenantLimits reads the limits of the tenant in the context, with defaults where it states none.
func (s *Store) TenantLimits(ctx context.Context) (TenantLimits, error) {
	raw, err := queryOne(ctx, s, pgx.RowTo[[]byte], sqlLimits)
	if err != nil {
		return TenantLimits{}, wrapf(err, "read limits")
	}
	limits, err := parseLimits(raw)
	return limits, wrapf(err, "read limits")
}

// parseLimits reads what CompassTenant.spec.limits looks like. What cannot be read keeps its default and is an error: a
// limit that nobody enforces must be heard of.
func parseLimits(raw []byte) (TenantLimits, error) {
	var in struct {
		Messages struct {
			PerSecond float64 `json:"perSecond"`
			Burst     int     `json:"burst"`
			MaxBytes  int     `json:"maxBytes"`
		} `json:"messages"`
		Database struct {
			StatementTimeout string `json:"statementTimeout"`
			Transactions     int    `json:"transactions"`
		} `json:"database"`
	}
	out := TenantLimits{Messages: DefaultMessageLimits, Database: DefaultLimits}
	if err := json.Unmarshal(raw, &in); err != nil {
		return out, fmt.Errorf("limits of the tenant: %w", err)
	}
	out.Messages.PerSecond = orDefault(in.Messages.PerSecond, out.Messages.PerSecond)
	out.Messages.Burst = orDefault(in.Messages.Burst, out.Messages.Burst)
	out.Messages.MaxBytes = orDefault(in.Messages.MaxBytes, out.Messages.MaxBytes)
	out.Database.Transactions = orDefault(in.Database.Transactions, out.Database.Transactions)
	if s := strings.TrimSpace(in.Database.StatementTimeout); s != "" {
		timeout, err := time.ParseDuration(s)
		if err != nil {
			return out, fmt.Errorf("limits of the tenant: %w", err)
		}
		out.Database.StatementTimeout = orDefault(timeout, out.Database.StatementTimeout)
	}
	return out, nil
}

func orDefault[T int | float64 | time.Duration](v, standard T) T {
	if v > 0 {
		return v
	}
	return standard
}
