package naming

import "strings"

// The first tokens of every subject. docs/SUBJECTS.md is the register.
const (
	root       = "compass"
	queueRoot  = root + ".q."
	deadRoot   = root + ".dlq."
	bcastRoot  = root + ".bcast."
	runnerRoot = root + ".runner."
	workerRoot = root + ".worker."
	clientRoot = "client."
)

// BroadcastFilter matches every broadcast of every tenant: what a Server may hear, not what it subscribes to (ruling B3).
const BroadcastFilter = bcastRoot + "*.*"

// ClientFilter matches what is addressed to any one connection.
const ClientFilter = clientRoot + "*"

// CommsSubject is the logical name compass.<tenant>.comms.<kind> of an event. The fabric maps it to QueueSubject through
// the tenant's placement (ruling T2).
func CommsSubject(tenant, kind string) (string, error) {
	if err := firstError(ValidTenant(tenant), ValidKind(kind)); err != nil {
		return "", err
	}
	return root + "." + tenant + ".comms." + kind, nil
}

// ParseCommsSubject is the inverse of CommsSubject.
func ParseCommsSubject(s string) (tenant, kind string, err error) {
	p := strings.Split(s, ".")
	if len(p) != 4 || p[0] != root || p[2] != "comms" || ValidTenant(p[1]) != nil || ValidKind(p[3]) != nil {
		return "", "", refuse("comms subject", s, "compass.<tenant>.comms.<kind>")
	}
	return p[1], p[3], nil
}

// QueueSubject is where an event of the queue lane travels: compass.q.<stream>.<tenant>.<kind>.
func QueueSubject(stream, tenant, kind string) (string, error) {
	if err := firstError(ValidName(stream), ValidTenant(tenant), ValidKind(kind)); err != nil {
		return "", err
	}
	return queueRoot + stream + "." + tenant + "." + kind, nil
}

// QueueFilter matches everything in one DeliveryStream, whatever its tenants: compass.q.<stream>.>.
func QueueFilter(stream string) (string, error) {
	if err := ValidName(stream); err != nil {
		return "", err
	}
	return queueRoot + stream + ".>", nil
}

// QueueKindFilter matches one kind of every tenant of a stream.
func QueueKindFilter(stream, kind string) (string, error) {
	if err := firstError(ValidName(stream), ValidKind(kind)); err != nil {
		return "", err
	}
	return queueRoot + stream + ".*." + kind, nil
}

// ParseQueueSubject is the inverse of QueueSubject.
func ParseQueueSubject(s string) (stream, tenant, kind string, err error) {
	p, ok := tokens(s, queueRoot, 3)
	if !ok || firstError(ValidName(p[0]), ValidTenant(p[1]), ValidKind(p[2])) != nil {
		return "", "", "", refuse("queue subject", s, "compass.q.<stream>.<tenant>.<kind>")
	}
	return p[0], p[1], p[2], nil
}

// BroadcastSubject is where an event of the broadcast lane travels: compass.bcast.<tenant>.<event>.
func BroadcastSubject(tenant, event string) (string, error) {
	if err := firstError(ValidTenant(tenant), ValidKind(event)); err != nil {
		return "", err
	}
	return bcastRoot + tenant + "." + event, nil
}

// BroadcastTenantFilter matches every broadcast of one tenant.
func BroadcastTenantFilter(tenant string) (string, error) {
	if err := ValidTenant(tenant); err != nil {
		return "", err
	}
	return bcastRoot + tenant + ".*", nil
}

// ParseBroadcastSubject is the inverse of BroadcastSubject.
func ParseBroadcastSubject(s string) (tenant, event string, err error) {
	p, ok := tokens(s, bcastRoot, 2)
	if !ok || firstError(ValidTenant(p[0]), ValidKind(p[1])) != nil {
		return "", "", refuse("broadcast subject", s, "compass.bcast.<tenant>.<event>")
	}
	return p[0], p[1], nil
}

// ClientSubject carries what is for one connection alone: resync, revoked, directed answers.
func ClientSubject(connection string) (string, error) {
	if err := ValidID(ConnectionPrefix, connection); err != nil {
		return "", err
	}
	return clientRoot + connection, nil
}

// ParseClientSubject is the inverse of ClientSubject.
func ParseClientSubject(s string) (connection string, err error) {
	p, ok := tokens(s, clientRoot, 1)
	if !ok || ValidID(ConnectionPrefix, p[0]) != nil {
		return "", refuse("client subject", s, "client.<connection>")
	}
	return p[0], nil
}

// WorkerSubject carries news for the worker of one stream alone; it is lossy.
func WorkerSubject(stream string) (string, error) {
	if err := ValidName(stream); err != nil {
		return "", err
	}
	return workerRoot + stream, nil
}

// ParseWorkerSubject is the inverse of WorkerSubject.
func ParseWorkerSubject(s string) (stream string, err error) {
	p, ok := tokens(s, workerRoot, 1)
	if !ok || ValidName(p[0]) != nil {
		return "", refuse("worker subject", s, "compass.worker.<stream>")
	}
	return p[0], nil
}

// tokens cuts the fixed head off and splits the rest, which must have exactly n parts.
func tokens(s, head string, n int) ([]string, bool) {
	rest, ok := strings.CutPrefix(s, head)
	if !ok {
		return nil, false
	}
	p := strings.Split(rest, ".")
	return p, len(p) == n
}
