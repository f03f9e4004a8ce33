// Package telemetry starts what a process tells about itself: a JSON log, metrics on a Prometheus endpoint, traces to an
// OTLP collector where one is named, and the two health endpoints. It owns the names that several packages share; a
// package that alone counts a thing names it itself.
//
// Cardinality: no attribute may carry a tenant, account, channel, message or session id, or anything else that grows with
// use. What concerns one tenant is in Postgres and asked for there.
package telemetry
