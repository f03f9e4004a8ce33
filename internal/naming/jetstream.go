package naming

import "strconv"

// Durable is the one durable consumer of every delivery stream.
const Durable = "deliver"

// NATS accounts that every CompassServer has. A tenant's own account is named by its tenant id.
const (
	AccountSystem  = "SYS"
	AccountCompass = "COMPASS"
	AccountRunners = "RUNNERS"
)

// Headers of the messages we publish. Who sent a message is told by its subject, never by a header: these are data.
const (
	HeaderTenant          = "Compass-Tenant"
	HeaderKind            = "Compass-Kind"
	HeaderRow             = "Compass-Row"
	HeaderVersion         = "Compass-Version"
	HeaderProducer        = "Compass-Producer" // instance id, InstancePrefix
	HeaderDigest          = "Compass-Digest"
	HeaderOriginalSubject = "Compass-Original-Subject" // dead letters: the concrete subject it came on (REQ-029)
	HeaderOriginalMsgID   = "Compass-Original-Msg-Id"
	HeaderRecipient       = "Compass-Recipient"
	HeaderAttempts        = "Compass-Attempts"
	HeaderReason          = "Compass-Reason"
	HeaderError           = "Compass-Error"
	HeaderFirstSeen       = "Compass-First-Seen" // RFC 3339, UTC
	HeaderLastSeen        = "Compass-Last-Seen"  // RFC 3339, UTC
	HeaderInstance        = "Compass-Instance"   // who parked it
	HeaderReplay          = "Compass-Replay"
)

// StreamName is the JetStream stream of a DeliveryStream: CMP_<stream>.
func StreamName(stream string) (string, error) {
	if err := ValidName(stream); err != nil {
		return "", err
	}
	return "CMP_" + stream, nil
}

// DeadLetterStreamName is the JetStream stream of its dead letters: CMP_<stream>_DLQ. It cannot be another stream's
// StreamName, because a stream's own name has no underscore.
func DeadLetterStreamName(stream string) (string, error) {
	name, err := StreamName(stream)
	if err != nil {
		return "", err
	}
	return name + "_DLQ", nil
}

// MsgID is the deduplication id of an event: the same change published twice collapses, the next change of the same row
// does not (REQ-013 as amended).
func MsgID(tenant, kind, row string, version int64) (string, error) {
	if err := firstError(ValidTenant(tenant), ValidKind(kind), ValidToken(row)); err != nil {
		return "", err
	}
	if version <= 0 {
		return "", refuse("version", strconv.FormatInt(version, 10), "more than 0")
	}
	return tenant + "." + kind + "." + row + "." + strconv.FormatInt(version, 10), nil
}
