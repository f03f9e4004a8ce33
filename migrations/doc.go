// Package migrations holds the schema of a Compass database as ordered SQL files, and nothing else.
//
// Each file runs whole in one transaction under `SET ROLE <owner>` (internal/store owns the runner). The names of the
// roles are placeholders, ${owner} ${app} ${system} ${provision} ${tenant}, because Postgres roles are cluster-wide and
// therefore carry the database's name (design T7). Numbers 0001-0099 belong to the store; later features start at 0100.
// A file that has been released is never edited: the runner records its hash and refuses a changed history.
package migrations
