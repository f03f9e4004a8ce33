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

// Wire is a message of the queue lane as it travels: the body is the reference, everything else is a header (X6).
type Wire struct {
	Subject string
	Header  map[string][]string
	Body    []byte
}

// EncodeRef builds the message of a reference on a stream. replay counts how often a dead letter of it was replayed; it
// gets a message id of its own then, or the duplicate window would swallow it.
func EncodeRef(ref EventRef, stream, producer string, replay int) (Wire, error) {
	subject, err := naming.QueueSubject(stream, ref.Tenant, string(ref.Kind))
	if err != nil {
		return Wire{}, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	id, err := naming.MsgID(ref.Tenant, string(ref.Kind), ref.RowID, ref.Version)
	if err != nil {
		return Wire{}, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	body, err := json.Marshal(ref)
	if err != nil {
		return Wire{}, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	w := Wire{Subject: subject, Body: body, Header: make(map[string][]string, 6)} // of these, and what the client library adds
	if replay > 0 {
		id += ".r" + strconv.Itoa(replay)
		w.Header[naming.HeaderReplay] = []string{strconv.Itoa(replay)}
	}
	values := []string{id, producer, digest(body), strconv.FormatInt(ref.Version, 10)} // one allocation for all
	for i, name := range [...]string{HeaderMsgID, naming.HeaderProducer, naming.HeaderDigest, naming.HeaderVersion} {
		w.Header[name] = values[i : i+1 : i+1]
	}
	return w, nil
}

// HeaderMsgID is JetStream's deduplication header.
const HeaderMsgID = nats.MsgIdHdr

// DecodeRef reads a message of the stream, and which replay it is. The subject is what the broker vouches for; the body
// must agree with it. With an error come the parts that the subject alone told.
func DecodeRef(stream string, w Wire) (ref EventRef, replay int, err error) {
	s, tenant, kind, err := naming.ParseQueueSubject(w.Subject)
	if err != nil || s != stream {
		return ref, 0, fmt.Errorf("%w: subject %q is none of stream %q", ErrBadRef, w.Subject, stream)
	}
	ref.Tenant, ref.Kind = tenant, EventKind(kind)
	var told EventRef
	if err := json.Unmarshal(w.Body, &told); err != nil {
		return ref, 0, fmt.Errorf("%w: body: %w", ErrBadRef, err)
	}
	header := nats.Header(w.Header)
	if got := header.Get(naming.HeaderDigest); got != digest(w.Body) {
		return ref, 0, fmt.Errorf("%w: digest %q is not the body's", ErrBadRef, got)
	}
	if told.Tenant != tenant || told.Kind != ref.Kind {
		return ref, 0, fmt.Errorf("%w: body names tenant %q and kind %q, the subject %q and %q",
			ErrBadRef, told.Tenant, told.Kind, tenant, kind)
	}
	if err := naming.ValidToken(told.RowID); err != nil {
		return ref, 0, fmt.Errorf("%w: row: %w", ErrBadRef, err)
	}
	version, err := strconv.ParseInt(header.Get(naming.HeaderVersion), 10, 64)
	if err != nil || version <= 0 {
		return ref, 0, fmt.Errorf("%w: version header %q", ErrBadRef, header.Get(naming.HeaderVersion))
	}
	ref.RowID, ref.Version = told.RowID, version
	replay, _ = strconv.Atoi(header.Get(naming.HeaderReplay)) // absent: 0
	return ref, replay, nil
}

// message is the NATS form.
func (w Wire) message() *nats.Msg {
	return &nats.Msg{Subject: w.Subject, Header: w.Header, Data: w.Body}
}

func wireOf(subject string, header nats.Header, body []byte) Wire {
	return Wire{Subject: subject, Header: header, Body: body}
}

func digest(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}
