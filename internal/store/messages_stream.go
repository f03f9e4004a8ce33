package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// ChannelHead is a channel of an account and the newest number that was given out in it.
type ChannelHead struct {
	Channel  string
	JoinedAt int64
	Last     int64
}

// Drain asks for what changed in some channels after a rev each.
type Drain struct {
	Reader string // must be a member of a channel to be told of it
	After  map[string]int64
	Limit  int // per channel
}

const (
	sqlChannelsOf = `
select h.channel_id, cm.joined_at, h.last from compass.channel_members cm
  join compass.channel_heads h on h.tenant_id = cm.tenant_id and h.channel_id = cm.channel_id
 where cm.account_id = $1 order by h.channel_id`

	// Membership is read in the statement that reads the messages: row-level security knows tenants, and a cached
	// membership would leak to an ex-member (B2).
	//
	//compass:hot
	sqlMessagesAfter = `
select` + sqlMessageColumns + `
  from unnest($2::text[], $3::bigint[]) as w (channel_id, rev)
  join compass.channel_members cm on cm.channel_id = w.channel_id and cm.account_id = $1
  join compass.accounts a on a.tenant_id = cm.tenant_id and a.id = cm.account_id and a.deleted_at_unix_ms is null
 cross join lateral (
       select * from compass.messages x
        where x.tenant_id = cm.tenant_id and x.channel_id = cm.channel_id and x.rev > w.rev
          and (x.pos is not null or a.kind = 'person' or x.author_id = a.id)
        order by x.rev limit $4) m
 order by m.channel_id, m.rev`
)

// ChannelsOf lists the channels of an account with their heads, in order of id: the head poll of a live stream.
func (s *Store) ChannelsOf(ctx context.Context, account string) ([]ChannelHead, error) {
	heads, err := query(ctx, s, pgx.RowToStructByPos[ChannelHead], sqlChannelsOf, account)
	return heads, wrapf(err, "read heads of the channels of %s", account)
}

// MessagesAfter reads what changed, by channel in order of rev. Nothing with a rev at or below one that was read can
// appear later (K1). A channel that the reader is no member of is left out.
func (s *Store) MessagesAfter(ctx context.Context, d Drain) ([]Message, error) {
	channels, revs := make([]string, 0, len(d.After)), make([]int64, 0, len(d.After))
	for channel, rev := range d.After {
		channels, revs = append(channels, channel), append(revs, rev)
	}
	ms, err := query(ctx, s, scanMessage, sqlMessagesAfter, d.Reader, channels, revs, d.Limit)
	return ms, wrapf(err, "read what changed for %s", d.Reader)
}

// Number gives a number that only goes up, from the database's clock (D9): the version of a fact about a row that has none
// of its own.
func (s *Store) Number(ctx context.Context) (int64, error) {
	n, err := queryOne(ctx, s, pgx.RowTo[int64], `select compass.number()`)
	return n, wrapf(err, "take a number")
}
