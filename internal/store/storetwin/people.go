package storetwin

import (
	"context"
	"fmt"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// CreateTenant is store.CreateTenant without tokens and audit.
func (c *Client) CreateTenant(ctx context.Context, n store.NewTenant) error {
	return c.asLoop(ctx, "create tenant", func(t *tx) error {
		return t.stmt("insert tenant", func() error {
			id := string(n.ID)
			if _, ok := t.tenants.get(t, id); ok {
				return store.ErrConflict
			}
			p := store.Placement{Stream: n.Stream}
			if n.Stream != "" {
				p.Claim = t.number()
			}
			t.tenants.put(t, id, tenantRow{
				Tenant: store.Tenant{ID: n.ID, Slug: n.Slug},
				limits: store.TenantLimits{Messages: store.DefaultMessageLimits, Database: store.DefaultLimits},
			})
			t.placements.put(t, id, p)
			admin := n.Admin
			admin.Kind, admin.Role, admin.Wake, admin.CreatedAtUnixMs = store.KindPerson, store.RoleAdmin, store.WakeManual, t.unixMs()
			t.accounts.put(t, key{id, admin.ID}, admin)
			return nil
		})
	})
}

// TenantLimits is store.TenantLimits.
func (c *Client) TenantLimits(ctx context.Context) (l store.TenantLimits, err error) {
	err = c.do(ctx, "read limits", func(t *tx) error {
		return t.stmt("select limits", func() error {
			row, ok := t.tenants.get(t, t.tenant)
			l = row.limits
			return orNotFound(ok)
		})
	})
	return l, err
}

// CreateAccount is store.CreateAccount.
func (c *Client) CreateAccount(ctx context.Context, a store.Account, _ string) (store.Account, error) {
	err := c.do(ctx, "create account", func(t *tx) error {
		return t.stmt("insert account", func() error {
			taken := false
			t.accounts.all(t, func(k key, other store.Account) bool {
				taken = taken || k.tenant == t.tenant && (k.id == a.ID || other.Handle == a.Handle)
				return !taken
			})
			if taken {
				return store.ErrConflict
			}
			a.CreatedAtUnixMs = t.unixMs()
			t.accounts.put(t, t.key(a.ID), a)
			return nil
		})
	})
	return a, err
}

// CreateChannel is store.CreateChannel: its maker is its first member.
func (c *Client) CreateChannel(ctx context.Context, ch store.Channel) (store.Channel, error) {
	err := c.do(ctx, "create channel", func(t *tx) error {
		return t.stmt("insert channel", func() error {
			if _, ok := t.channels.get(t, t.key(ch.ID)); ok {
				return store.ErrConflict
			}
			creator, ok := t.accounts.get(t, t.key(ch.CreatedBy))
			if !ok {
				return store.ErrNotFound
			}
			ch.CreatedAtUnixMs = t.unixMs()
			t.channels.put(t, t.key(ch.ID), channelRow{ch})
			t.heads.put(t, t.key(ch.ID), headRow{})
			t.members.put(t, t.pair(ch.ID, creator.ID), memberRow{})
			if creator.Kind == store.KindAgent {
				t.cursors.put(t, t.pair(creator.ID, ch.ID), cursorRow{})
			}
			return nil
		})
	})
	return ch, err
}

// ArchiveChannel is store.ArchiveChannel.
func (c *Client) ArchiveChannel(ctx context.Context, channel, actor string) (out store.Channel, err error) {
	err = c.do(ctx, "archive channel", func(t *tx) error {
		if member, err := t.lockChannel(channel, actor); err != nil || !member {
			return orErr(err, store.ErrNotFound)
		}
		return t.stmt("update channel", func() error {
			row, _ := t.channels.get(t, t.key(channel))
			row.Archived = true
			t.channels.put(t, t.key(channel), row)
			out = row.Channel
			return nil
		})
	})
	return out, err
}

// orErr is err, or what stands for nil.
func orErr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// lockChannel takes the head's lock for a member of the channel, and for nobody else.
func (t *tx) lockChannel(channel, account string) (member bool, err error) {
	err = t.stmt("lock head", func() error {
		_, member = t.members.get(t, t.pair(channel, account))
		return nil
	})
	if err == nil && member && !t.rules.Sequence {
		err = t.acquire(t.alone("head", channel))
	}
	return member, err
}

// AddMember is store.AddMember.
func (c *Client) AddMember(ctx context.Context, m store.Member) error {
	return c.do(ctx, "add member", func(t *tx) error {
		if member, err := t.lockChannel(m.Channel, m.Actor); err != nil || !member {
			return orErr(err, store.ErrNotFound)
		}
		return t.stmt("join", func() error {
			account, ok := t.accounts.get(t, t.key(m.Account))
			if !ok || account.DeletedAtUnixMs != 0 {
				return fmt.Errorf("account %s: %w", m.Account, store.ErrNotFound)
			}
			at := t.pair(m.Channel, m.Account)
			if _, is := t.members.get(t, at); is {
				return nil
			}
			head, _ := t.heads.get(t, t.key(m.Channel))
			t.members.put(t, at, memberRow{head.lastPos})
			t.note(Fact{Kind: FactJoined, Agent: m.Account, Channel: m.Channel, Pos: head.lastPos})
			if account.Kind == store.KindAgent {
				cursor, _ := t.cursors.get(t, t.pair(m.Account, m.Channel))
				t.cursors.put(t, t.pair(m.Account, m.Channel), cursorRow{max(cursor.acked, head.lastPos)})
			}
			return nil
		})
	})
}

// RemoveMember is store.RemoveMember.
func (c *Client) RemoveMember(ctx context.Context, m store.Member) error {
	return c.do(ctx, "remove member", func(t *tx) error {
		if member, err := t.lockChannel(m.Channel, m.Actor); err != nil || !member {
			return orErr(err, store.ErrNotFound)
		}
		return t.stmt("leave", func() error {
			at := t.pair(m.Channel, m.Account)
			if _, is := t.members.get(t, at); !is {
				return nil
			}
			head, _ := t.heads.get(t, t.key(m.Channel))
			t.members.del(t, at)
			t.note(Fact{Kind: FactLeft, Agent: m.Account, Channel: m.Channel, Pos: head.lastPos})
			ended := map[string]bool{}
			t.owed.all(t, func(k pair, o owedRow) bool {
				if k.tenant == t.tenant && k.a == m.Account && o.channel == m.Channel {
					ended[k.b] = true
					t.owed.del(t, k)
				}
				return true
			})
			t.commands.all(t, func(k nth, cmd store.SessionCommand) bool {
				b, _ := t.bindings.get(t, t.key(k.session))
				if k.tenant == t.tenant && b.Agent == m.Account && ended[cmd.MessageID] {
					t.commands.del(t, k)
				}
				return true
			})
			return nil
		})
	})
}
