package event

import (
	"errors"
	"fmt"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// ErrFact is matched by the error of a fact that cannot be told: it was not made by a constructor of this package, or with
// ids that are none.
var ErrFact = errors.New("fact cannot be told")

// Ref says which row a fact is about, never what is in it: who acts on it reads the row, under the tenant.
type Ref struct {
	Tenant  string `json:"tenant"`
	Kind    Name   `json:"kind"`
	RowID   string `json:"row_id"`
	Scope   string `json:"scope,omitempty"` // what the row lies within, so that nobody reads a row to learn that he need not
	Version int64  `json:"-"`               // beside the reference on the wire; 0 for the heartbeat alone
}

// Fact is a decision already taken, and nothing about how it travels. The functions below make them, one for each event;
// its fields are closed, so there is no fact of an undeclared kind and none without a version.
type Fact struct{ ref Ref }

// Ref returns what the fact is about.
func (f Fact) Ref() Ref { return f.ref }

// MessagePosted says that a message was committed, or the turn that held it has settled. rev is that change's.
func MessagePosted(tenant, channel, message string, rev int64) Fact {
	return Fact{Ref{tenant, NameMessagePosted, message, channel, rev}}
}

// MessageVisible says that a message may be seen by the people of its channel.
func MessageVisible(tenant, channel, message string, rev int64) Fact {
	return Fact{Ref{tenant, NameMessageVisible, message, channel, rev}}
}

// MessageUpdated says that a visible message was edited, framed, answered or settled.
func MessageUpdated(tenant, channel, message string, rev int64) Fact {
	return Fact{Ref{tenant, NameMessageUpdated, message, channel, rev}}
}

// ChannelChanged says that a channel was made, changed or archived, or its members or pins have changed.
func ChannelChanged(tenant, channel string, clock int64) Fact {
	return Fact{Ref{tenant, NameChannelChanged, channel, "", clock}}
}

// AgentWorkspaceChanged says that what an agent works on has changed.
func AgentWorkspaceChanged(tenant, agent string, clock int64) Fact {
	return Fact{Ref{tenant, NameAgentWorkspaceChanged, agent, "", clock}}
}

// TopicUpserted says that a topic of a channel was made or changed.
func TopicUpserted(tenant, channel, topic string, clock int64) Fact {
	return Fact{Ref{tenant, NameTopicUpserted, topic, channel, clock}}
}

// BindingChanged says that an agent's session began, ended or was replaced. The generation is no version: a session begins and
// ends in one.
func BindingChanged(tenant, agent string, clock int64) Fact {
	return Fact{Ref{tenant, NameBindingChanged, agent, "", clock}}
}

// CursorMoved says that an agent's acknowledgement moved its cursor in a channel to acked. Told only after it moved.
func CursorMoved(tenant, channel, agent string, acked int64) Fact {
	return Fact{Ref{tenant, NameCursorMoved, agent, channel, acked}}
}

// PlacementChanged says that a tenant was placed, drained, moved or frozen.
func PlacementChanged(tenant string, clock int64) Fact {
	return Fact{Ref{tenant, NamePlacementChanged, tenant, "", clock}}
}

// PresenceChanged says that an account came, went or changed what it shows. The clock tells going and coming back apart.
func PresenceChanged(tenant, account string, clock int64) Fact {
	return Fact{Ref{tenant, NamePresenceChanged, account, "", clock}}
}

// AccessChanged says that a token of an account was revoked, or that its role changed or it was deleted: who acts for it must
// ask again whether he may.
func AccessChanged(tenant, account string, clock int64) Fact {
	return Fact{Ref{tenant, NameAccessChanged, account, "", clock}}
}

// Heartbeat says that this instance is there, for those who listen to the tenant.
func Heartbeat(tenant string) Fact {
	return Fact{Ref{tenant, NameHeartbeat, tenant, "", 0}}
}

// ClientLagged says that a client stream fell behind the bus, at seq, and was told to resync.
func ClientLagged(tenant, connection string, seq uint64) Fact {
	return Fact{Ref{tenant, NameClientLagged, connection, "", int64(max(seq, 1))}}
}

// check refuses a reference that its entry does not describe.
func (r Ref) check(e Entry) error {
	if err := naming.ValidTenant(r.Tenant); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFact, e.Name, err)
	}
	if err := naming.ValidToken(r.RowID); err != nil {
		return fmt.Errorf("%w: %s: row: %w", ErrFact, e.Name, err)
	}
	if (r.Scope != "") != (e.Scope != "") {
		return fmt.Errorf("%w: %s: scope %q, declared is %q", ErrFact, e.Name, r.Scope, e.Scope)
	}
	if r.Scope != "" {
		if err := naming.ValidToken(r.Scope); err != nil {
			return fmt.Errorf("%w: %s: scope: %w", ErrFact, e.Name, err)
		}
	}
	if (e.Version == VersionNone) != (r.Version == 0) || r.Version < 0 {
		return fmt.Errorf("%w: %s: version %d, declared is %s", ErrFact, e.Name, r.Version, e.Version)
	}
	return nil
}
