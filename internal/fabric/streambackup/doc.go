// Package streambackup saves the streams of one DeliveryStream as files, and puts them back with the sequences and the
// consumer that they had. JetStream's own protocol for this is spoken by jsm.go.
//
// It is a module of its own: jsm.go brings much along, and replaces by MVS an instrumentation package that the product builds
// without. Nothing of the product may import it (hack/checks/imports).
//
// Postgres is the truth, and a stream that was lost is filled again from there. What a backup saves is what only NATS has: how
// often each reference was tried, and dead letters of what nobody could read.
package streambackup
