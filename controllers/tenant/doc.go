// Package tenant reconciles CompassTenants: a tenant of a CompassServer, with a NATS account, a row and a way in.
//
//	ServerAccepted ─┬─▶ DatabaseReady (row) ─┬─▶ AccountReady
//	                                         ├─▶ CredentialsReady (admin account, <name>-api)
//	                                         └─▶ Delivering (who carries it)
//
// The row is the truth: it is found by its slug, so an id that was minted before a crash and never stored is forgotten, and
// a tenant that was made through the API is found too. Of two objects that name one slug the older keeps it.
//
// It must never import another kind.
package tenant
