package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const (
	sqlMapLogin = `
insert into compass.sql_logins (tenant_id, role_name) values ($1, $2) on conflict do nothing`
	sqlUnmapLogins = `delete from compass.sql_logins l where l.tenant_id = $1 and l.role_name <> $2`
)

// MapLogin makes role the one SQL login of a tenant; "" leaves it none. A login that is mapped to nobody sees nothing. It
// needs the provision right.
func (s *Store) MapLogin(ctx context.Context, tenant TenantID, role string) error {
	home, err := s.homeOf(ctx, tenant)
	if err != nil {
		return wrapf(err, "map the SQL login of tenant %s", tenant)
	}
	err = s.provisionDo(ctx, home, func(b *pgx.Batch) {
		b.Queue(sqlUnmapLogins, tenant, role)
		if role != "" {
			b.Queue(sqlMapLogin, tenant, role)
		}
	})
	return wrapf(err, "map the SQL login of tenant %s", tenant)
}
