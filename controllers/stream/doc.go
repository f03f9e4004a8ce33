// Package stream reconciles DeliveryStreams: which tenants a stream carries, its JetStream stream, consumer and dead
// letters, and the one worker that serves it.
//
//	TenantsPlaced                                    (Postgres)
//	StreamReady ──▶ ConsumerReady; DeadLetterReady   (NATS)
//	WorkerAvailable ──▶ SingleWriter                 (Kubernetes, then the lease in Postgres)
//
// The placement row is the truth of who carries a tenant. It changes hands by comparison, so of two streams that claim one
// the first keeps it; a tenant leaves a running worker only when that has let go of it or its lease is over (MoveBound).
//
// There is no replica field, on purpose: gates live in one process (OQ-4). It must never import another kind.
package stream
