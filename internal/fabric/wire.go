package fabric

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// CommsSubject is the logical subject of an event, compass.<tenant>.comms.<kind> (REQ-008). Publish maps it to the stream
// that carries the tenant.
func CommsSubject(tenant string, kind EventKind) (string, error) {
	s, err := naming.CommsSubject(tenant, string(kind))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	return s, nil
}

// check refuses a reference that does not belong on the logical subject.
func (r EventRef) check(subject string) error {
	want, err := CommsSubject(r.Tenant, r.Kind)
	if err != nil {
		return err
	}
	if want != subject {
		return fmt.Errorf("%w: subject %q is not the reference's %q", ErrBadRef, subject, want)
	}
	if err := naming.ValidToken(r.RowID); err != nil {
		return fmt.Errorf("%w: row: %w", ErrBadRef, err)
	}
	if r.Version <= 0 {
		return fmt.Errorf("%w: version %d is not positive", ErrBadRef, r.Version)
	}
	return nil
}

// encodeRef builds the message of a reference: the body is the reference, everything else is a header (X6).
func encodeRef(ref EventRef, stream, producer string, replay int) (*nats.Msg, error) {
	subject, err := naming.QueueSubject(stream, ref.Tenant, string(ref.Kind))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	id, err := naming.MsgID(ref.Tenant, string(ref.Kind), ref.RowID, ref.Version)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	body, err := json.Marshal(ref)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	h := nats.Header{}
	h.Set(naming.HeaderProducer, producer)
	h.Set(naming.HeaderDigest, digest(body))
	h.Set(naming.HeaderVersion, strconv.FormatInt(ref.Version, 10))
	if replay > 0 { // an id of its own, or the duplicate window would swallow the replay
		id += ".r" + strconv.Itoa(replay)
		h.Set(naming.HeaderReplay, strconv.Itoa(replay))
	}
	h.Set(nats.MsgIdHdr, id)
	return &nats.Msg{Subject: subject, Header: h, Data: body}, nil
}

// arrived is what a message of the queue lane says, as far as it could be read.
type arrived struct {
	ref    EventRef
	replay int
}

// decodeRef reads a message of the stream. The subject is what the broker vouches for; the body must agree with it. On an
// error the parts that were still readable are returned with it.
func decodeRef(stream, subject string, header nats.Header, body []byte) (arrived, error) {
	var a arrived
	s, tenant, kind, err := naming.ParseQueueSubject(subject)
	if err != nil || s != stream {
		return a, fmt.Errorf("%w: subject %q is none of stream %q", ErrBadRef, subject, stream)
	}
	a.ref.Tenant, a.ref.Kind = tenant, EventKind(kind)
	var told EventRef
	if err := json.Unmarshal(body, &told); err != nil {
		return a, fmt.Errorf("%w: body: %w", ErrBadRef, err)
	}
	if got := header.Get(naming.HeaderDigest); got != digest(body) {
		return a, fmt.Errorf("%w: digest %q is not the body's", ErrBadRef, got)
	}
	if told.Tenant != tenant || told.Kind != a.ref.Kind {
		return a, fmt.Errorf("%w: body names tenant %q and kind %q, the subject %q and %q",
			ErrBadRef, told.Tenant, told.Kind, tenant, kind)
	}
	if err := naming.ValidToken(told.RowID); err != nil {
		return a, fmt.Errorf("%w: row: %w", ErrBadRef, err)
	}
	version, err := strconv.ParseInt(header.Get(naming.HeaderVersion), 10, 64)
	if err != nil || version <= 0 {
		return a, fmt.Errorf("%w: version header %q", ErrBadRef, header.Get(naming.HeaderVersion))
	}
	a.ref.RowID, a.ref.Version = told.RowID, version
	a.replay, _ = strconv.Atoi(header.Get(naming.HeaderReplay)) // absent: 0
	return a, nil
}

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}
