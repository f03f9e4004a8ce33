package edge

import (
	"context"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// Store is what the edge needs of *store.Store. Each method's contract is there.
type Store interface {
	people
	places
	platformStore
}

type people interface {
	callers
	accountsStore
}

type places interface {
	channelsStore
	pinsStore
}

type platformStore interface {
	tenantsStore
	lettersStore
	figures
}

type callers interface {
	Authenticate(ctx context.Context, hash [32]byte) (store.Caller, error)
	AddToken(ctx context.Context, t store.NewToken) error
	RevokeToken(ctx context.Context, id, actor string) error
	AccountOfToken(ctx context.Context, id string) (string, error)
	Audit(ctx context.Context, actor, action string, detail map[string]string) error
}

type accountsStore interface {
	CreateAccount(ctx context.Context, a store.Account, actor string) (store.Account, error)
	ListAccounts(ctx context.Context, page store.Page) ([]store.Account, string, error)
	SetRole(ctx context.Context, id string, r store.Role, actor string) (store.Account, error)
	DeleteAccount(ctx context.Context, id, actor string) ([]store.Touched, error)
}

type channelsStore interface {
	CreateChannel(ctx context.Context, c store.Channel) (store.Channel, error)
	ListChannels(ctx context.Context, account string, page store.Page) ([]store.Channel, string, error)
	ArchiveChannel(ctx context.Context, channel, actor string) (store.Channel, error)
	AddMember(ctx context.Context, m store.Member) error
	RemoveMember(ctx context.Context, m store.Member) error
}

type pinsStore interface {
	ListMembers(ctx context.Context, channel, reader string) ([]store.Account, error)
	PinMessage(ctx context.Context, p store.Pin) error
	UnpinMessage(ctx context.Context, p store.Pin) error
}

type tenantsStore interface {
	CreateTenant(ctx context.Context, t store.NewTenant) error
	FindTenant(ctx context.Context, idOrSlug string) (store.Tenant, error)
	IssueRunnerToken(ctx context.Context, hash [32]byte, fleet string) error
}

type lettersStore interface {
	ListDeadLetters(ctx context.Context, page store.Page) ([]store.DeadLetter, string, error)
	ReplayDeadLetters(ctx context.Context, f store.DeadLetterFilter, actor string, dryRun bool) (store.Replayed, error)
	PurgeDeadLetters(ctx context.Context, f store.DeadLetterFilter, actor string, dryRun bool) (int64, error)
}

type figures interface {
	ListOwed(ctx context.Context, limit int) ([]store.Owed, error)
	ListHeld(ctx context.Context, limit int) ([]store.Message, error)
	TenantStatus(ctx context.Context) (store.Status, error)
	Number(ctx context.Context) (int64, error)
}
