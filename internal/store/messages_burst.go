package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Burst asks, for every stream of a process at once, what changed in some channels after a rev each.
type Burst struct {
	Readers []string // whose streams are asked for; an account that is none of a channel's members is told nothing of it
	After   map[string]int64
	Limit   int // per channel
}

// News is what changed in one channel, and which of the readers were its members in the moment in which it was read.
type News struct {
	Messages []Message // in order of rev; of open turns too
	People   []string  // may see all of them
	Agents   []string  // see what has its position, and what is their own
}

const (
	// What MessagesAfter reads for one reader. Membership is read in the statement that reads the messages here too (B2):
	// its answer stands beside the first message of each channel.
	//
	//compass:hot
	sqlBurst = `
select` + sqlMessageColumns + `,
       case when row_number() over (partition by m.channel_id order by m.rev) = 1 then s.people end,
       case when row_number() over (partition by m.channel_id order by m.rev) = 1 then s.agents end
  from (
       select cm.tenant_id, w.channel_id, w.rev,
              array_agg(a.id) filter (where a.kind = 'person') as people,
              array_agg(a.id) filter (where a.kind <> 'person') as agents
         from unnest($2::text[], $3::bigint[]) as w (channel_id, rev)
         join compass.channel_members cm on cm.channel_id = w.channel_id and cm.account_id = any ($1::text[])
         join compass.accounts a on a.tenant_id = cm.tenant_id and a.id = cm.account_id and a.deleted_at_unix_ms is null
        group by cm.tenant_id, w.channel_id, w.rev) s
 cross join lateral (
       select * from compass.messages x
        where x.tenant_id = s.tenant_id and x.channel_id = s.channel_id and x.rev > s.rev
        order by x.rev limit $4) m
 order by m.channel_id, m.rev`

	sqlSeats = `
select cm.account_id, h.channel_id, cm.joined_at, h.last from compass.channel_members cm
  join compass.channel_heads h on h.tenant_id = cm.tenant_id and h.channel_id = cm.channel_id
 where cm.account_id = any ($1::text[]) order by cm.account_id, h.channel_id`
)

// MessagesBurst reads what changed once for many readers, by channel. A channel without a member among them, or in which
// nothing changed, is left out.
func (s *Store) MessagesBurst(ctx context.Context, b Burst) (map[string]News, error) {
	channels, revs := make([]string, 0, len(b.After)), make([]int64, 0, len(b.After))
	for channel, rev := range b.After {
		channels, revs = append(channels, channel), append(revs, rev)
	}
	type line struct {
		Message
		people, agents []string
	}
	lines, err := query(ctx, s, func(row pgx.CollectableRow) (l line, err error) {
		err = row.Scan(append(l.columns(), &l.people, &l.agents)...)
		return l, err
	}, sqlBurst, b.Readers, channels, revs, b.Limit)
	if err != nil {
		return nil, wrapf(err, "read what changed in %d channels", len(channels))
	}
	out := make(map[string]News, len(channels))
	for _, l := range lines {
		n := out[l.Channel]
		if l.people != nil || l.agents != nil {
			n.People, n.Agents = l.people, l.agents
		}
		n.Messages = append(n.Messages, l.Message)
		out[l.Channel] = n
	}
	return out, nil
}

// SeatsOf lists the channels of several accounts with their heads: the head poll of all live streams of a process.
func (s *Store) SeatsOf(ctx context.Context, accounts []string) (map[string][]ChannelHead, error) {
	type seat struct {
		Account string
		ChannelHead
	}
	seats, err := query(ctx, s, func(row pgx.CollectableRow) (st seat, err error) {
		err = row.Scan(&st.Account, &st.Channel, &st.JoinedAt, &st.Last)
		return st, err
	}, sqlSeats, accounts)
	if err != nil {
		return nil, wrapf(err, "read heads of the channels of %d accounts", len(accounts))
	}
	out := make(map[string][]ChannelHead, len(accounts))
	for _, st := range seats {
		out[st.Account] = append(out[st.Account], st.ChannelHead)
	}
	return out, nil
}
