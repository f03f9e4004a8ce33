// Package move brings a tenant from one database to another while it is in use.
//
//	living in A ──freeze──▶ frozen in A ──copy──▶ whole in B, frozen ──flip──▶ living in B, a frozen rest in A ──▶ A empty
//
// It promises that nothing is lost: from the freeze on every write to the tenant is refused (store.ErrFrozen), the copy
// begins when all that began before the freeze has ended, and the routing row of database 0 is changed by comparison. Before
// the flip the tenant lives in A, whatever failed; after it in B. Every step may be repeated: Move again finishes what
// another Move began. Whoever still has the old route finds a frozen tenant, and looks again.
//
// It writes as the owner of both databases, within the tenant's scope, so it cannot take a row of anybody else. It must not
// import package store.
package move
