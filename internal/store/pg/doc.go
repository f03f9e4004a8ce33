// Package pg is what every part of the store knows about a Postgres connection: what an error means, whether a pooler
// stands in front of the server, and how an identifier is quoted.
//
// It promises that an error leaves the store as one of the sentinels below, judged by SQLSTATE in one place (Interpret),
// never by text. It holds no connection of its own and must not import any other package of the store.
package pg
