package wire

import (
	"fmt"
	"unicode"
	"unicode/utf8"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/store"
)

const (
	maxHandle = 64
	maxName   = 128
)

// Account is an account as the API shows it.
func Account(a store.Account) *compassv1.Account {
	return &compassv1.Account{
		Id: a.ID, Kind: accountKind(a.Kind), Role: role(a.Role), Handle: a.Handle, DisplayName: a.DisplayName,
		Wake: wake(a.Wake), CreatedAtUnixMs: a.CreatedAtUnixMs,
	}
}

// Accounts is Account for each.
func Accounts(as []store.Account) []*compassv1.Account {
	out := make([]*compassv1.Account, len(as))
	for i, a := range as {
		out[i] = Account(a)
	}
	return out
}

// Channel is a channel as the API shows it.
func Channel(c store.Channel) *compassv1.Channel {
	return &compassv1.Channel{Id: c.ID, Name: c.Name, Archived: c.Archived, CreatedAtUnixMs: c.CreatedAtUnixMs}
}

// Channels is Channel for each.
func Channels(cs []store.Channel) []*compassv1.Channel {
	out := make([]*compassv1.Channel, len(cs))
	for i, c := range cs {
		out[i] = Channel(c)
	}
	return out
}

// Handle refuses what no account may be called: 1 to 64 of a-z, 0-9 and inner hyphens.
func Handle(s string) error {
	inner := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	ok := len(s) >= 1 && len(s) <= maxHandle && inner(s[0]) && inner(s[len(s)-1])
	for i := range len(s) {
		ok = ok && (inner(s[i]) || s[i] == '-')
	}
	if !ok {
		return fmt.Errorf("%w: a handle is 1 to %d of a-z, 0-9 and -, not first or last", ErrShape, maxHandle)
	}
	return nil
}

// ChannelName refuses what no channel may be called: 1 to 128 characters, none of them a control character.
func ChannelName(s string) error { return printable("channel name", s, maxName) }

// DisplayName refuses what cannot be shown in one line; it may be empty.
func DisplayName(s string) error {
	if s == "" {
		return nil
	}
	return printable("display_name", s, maxName)
}

func printable(what, s string, most int) error {
	n := utf8.RuneCountInString(s)
	ok := utf8.ValidString(s) && n >= 1 && n <= most
	for _, r := range s {
		ok = ok && !unicode.IsControl(r)
	}
	if !ok {
		return fmt.Errorf("%w: %s is 1 to %d characters without control characters", ErrShape, what, most)
	}
	return nil
}

// FromAccountKind reads a kind; unspecified is refused, because a person and an agent differ for ever.
func FromAccountKind(k compassv1.AccountKind) (store.AccountKind, error) {
	switch k {
	case compassv1.AccountKind_ACCOUNT_KIND_PERSON:
		return store.KindPerson, nil
	case compassv1.AccountKind_ACCOUNT_KIND_AGENT:
		return store.KindAgent, nil
	case compassv1.AccountKind_ACCOUNT_KIND_UNSPECIFIED:
	}
	return "", fmt.Errorf("%w: kind is ACCOUNT_KIND_PERSON or ACCOUNT_KIND_AGENT", ErrShape)
}

// FromRole reads a role; unspecified is member.
func FromRole(r compassv1.Role) (store.Role, error) {
	switch r {
	case compassv1.Role_ROLE_UNSPECIFIED, compassv1.Role_ROLE_MEMBER:
		return store.RoleMember, nil
	case compassv1.Role_ROLE_ADMIN:
		return store.RoleAdmin, nil
	}
	return "", fmt.Errorf("%w: role is ROLE_MEMBER or ROLE_ADMIN", ErrShape)
}

// FromWake reads what wakes an agent; unspecified is manual.
func FromWake(w compassv1.Wake) (store.Wake, error) {
	switch w {
	case compassv1.Wake_WAKE_UNSPECIFIED, compassv1.Wake_WAKE_MANUAL:
		return store.WakeManual, nil
	case compassv1.Wake_WAKE_ON_OWED:
		return store.WakeOnOwed, nil
	}
	return "", fmt.Errorf("%w: wake is WAKE_MANUAL or WAKE_ON_OWED", ErrShape)
}

func accountKind(k store.AccountKind) compassv1.AccountKind {
	if k == store.KindAgent {
		return compassv1.AccountKind_ACCOUNT_KIND_AGENT
	}
	return compassv1.AccountKind_ACCOUNT_KIND_PERSON
}

func role(r store.Role) compassv1.Role {
	if r == store.RoleAdmin {
		return compassv1.Role_ROLE_ADMIN
	}
	return compassv1.Role_ROLE_MEMBER
}

func wake(w store.Wake) compassv1.Wake {
	if w == store.WakeOnOwed {
		return compassv1.Wake_WAKE_ON_OWED
	}
	return compassv1.Wake_WAKE_MANUAL
}
