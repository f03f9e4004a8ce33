// Package broadcast measures what it costs to tell clients what was committed: from the commit at one Server to the clients of
// another, beside a bare NATS that tells the same bytes to as many connections. hack/bench-broadcast runs it.
//
// Both sides are read by the same client, which only counts: what is compared is the work of telling. Figures are ratios and
// differences of one run on one machine.
package broadcast
