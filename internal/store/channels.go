package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const (
	sqlChannelColumns = ` c.id, c.name, c.archived, c.created_by, c.created_at_unix_ms`

	sqlInsertChannel = `
with made as (
    insert into compass.channels as c (tenant_id, id, name, created_by)
    select a.tenant_id, $1, $2, a.id from compass.accounts a where a.id = $3
    returning c.tenant_id, ` + sqlChannelColumns + `
), head as (
    insert into compass.channel_heads (tenant_id, channel_id) select c.tenant_id, c.id from made c
), member as (
    insert into compass.channel_members (tenant_id, channel_id, account_id, joined_at)
    select c.tenant_id, c.id, c.created_by, 0 from made c
), cursor as (
    insert into compass.delivery_cursors (tenant_id, agent_id, channel_id, acked)
    select c.tenant_id, c.created_by, c.id, 0 from made c
      join compass.accounts a on a.tenant_id = c.tenant_id and a.id = c.created_by and a.kind = 'agent'
)
select` + sqlChannelColumns + ` from made c`

	sqlListChannels = `
select` + sqlChannelColumns + ` from compass.channel_members cm
  join compass.channels c on c.tenant_id = cm.tenant_id and c.id = cm.channel_id
 where cm.account_id = $1 and c.id > $2 order by c.id limit $3`

	sqlArchive = `
update compass.channels c set archived = true
 where c.id = $1 and exists (select from compass.channel_members cm where cm.channel_id = $1 and cm.account_id = $2)
returning` + sqlChannelColumns
)

// Page asks for at most Limit rows after the one that ended the page before; After is empty for the first.
type Page struct {
	After string
	Limit int
}

// cut shortens rows that were read with one row too many, and returns where the next page begins; "" for the last one.
func cut[T any](page Page, rows []T, id func(T) string) ([]T, string) {
	if len(rows) <= page.Limit {
		return rows, ""
	}
	rows = rows[:page.Limit]
	return rows, id(rows[page.Limit-1])
}

// CreateChannel makes a channel with its creator as first member. ErrConflict where the name is taken.
func (s *Store) CreateChannel(ctx context.Context, c Channel) (Channel, error) {
	made, err := queryOne(ctx, s, scanChannel, sqlInsertChannel, c.ID, c.Name, c.CreatedBy)
	return made, wrapf(err, "create channel %q", c.Name)
}

// ListChannels lists the channels of an account in order of id.
func (s *Store) ListChannels(ctx context.Context, account string, page Page) ([]Channel, string, error) {
	rows, err := query(ctx, s, scanChannel, sqlListChannels, account, page.After, page.Limit+1)
	if err != nil {
		return nil, "", wrapf(err, "list channels of %s", account)
	}
	rows, next := cut(page, rows, func(c Channel) string { return c.ID })
	return rows, next, nil
}

// ArchiveChannel refuses posts from then on. It waits for the head's lock, so that no post that has not committed yet
// comes in behind it. Idempotent; ErrNotFound where the actor is not a member.
func (s *Store) ArchiveChannel(ctx context.Context, channel, actor string) (Channel, error) {
	var out []Channel
	err := s.do(ctx, func(b *pgx.Batch) {
		b.Queue(sqlLockChannel, channel, actor)
		b.Queue(sqlArchive, channel, actor).Query(func(rows pgx.Rows) (err error) {
			out, err = pgx.CollectRows(rows, scanChannel)
			return err
		})
	})
	c, err := only(out, err)
	return c, wrapf(err, "archive channel %s", channel)
}

func scanChannel(row pgx.CollectableRow) (Channel, error) {
	var c Channel
	err := row.Scan(&c.ID, &c.Name, &c.Archived, &c.CreatedBy, &c.CreatedAtUnixMs)
	return c, err
}
