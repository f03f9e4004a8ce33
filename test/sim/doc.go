// Package sim runs the code of comms, hub, delivery and runner on the twins of Postgres and NATS, under one seeded
// scheduler, with faults, and checks what became of every message.
//
//	everything blocks ─▶ the scheduler takes one call that waits, by the seed ─▶ what follows it runs until all block again
//
// A call is a statement, a commit, a publish, a command, a request, something that is heard. Time is that of a synctest
// bubble: it moves when nothing waits, and a little after each call. So a seed is a schedule: the same one has the same
// hash.
//
// The checker reads what is committed and what the agents took, and nothing else. Controls switch rules of the protocol
// off; a test asserts that the checker sees each.
package sim
