package telemetry

// Scope is the instrumentation scope of every meter and tracer of the product.
const Scope = "github.com/rigelbuild/compass-operator"

// Names that more than one package uses. Durations are in seconds.
const (
	// FabricPublishFailures counts references that were given up after a commit (REQ-012). Each costs latency, bounded by
	// the floor tick, and never a message.
	FabricPublishFailures = "compass.delivery.fabric_publish_failures"
	// HopDuration is the time that one hop of a message's way took; its attribute hop is one of the Hop constants.
	HopDuration = "compass.delivery.hop.duration"
)

// AttrHop is the attribute of HopDuration.
const AttrHop = "hop"

// The hops of a message, in order, each measured by the process that ends it. Hops of what goes beside the chain end with
// HopHint: its commands are rows, and a Runner that missed the push fetches them.
const (
	// HopCommit: from the entry of the RPC to the commit.
	HopCommit = "commit"
	// HopPublish: from the hand-over after the commit until JetStream had stored the reference, all tries together.
	HopPublish = "publish"
	// HopHint: from when JetStream had stored the reference until the worker's callback saw it.
	HopHint = "hint"
	// HopDrain: from the mark of the channel until the drain's snapshot was read.
	HopDrain = "drain"
	// HopDispatch: from the snapshot until the command was handed to the broker.
	HopDispatch = "dispatch"
	// HopTaken: from the command until the Runner said that it holds it.
	HopTaken = "taken"
	// HopAck: from the position until the cursor had passed it, by the clock of Postgres. Of the positions that one ack
	// passes only the last is measured.
	HopAck = "ack"
)
