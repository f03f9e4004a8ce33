// Package worldtest gives tests a small world on real Postgres: tenants with people, agents, channels and running sessions.
//
// It goes through the store where the product does, and writes with a superuser only what the product leaves to others:
// a Runner that has claimed a session. Everything it does fails the test where it fails. Only tests may import it; it must
// import nothing of ours but the store and what the store stands on.
package worldtest
