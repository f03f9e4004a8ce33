package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// maxErrorText bounds what a dead letter repeats of an error.
const maxErrorText = 1 << 10

// parkMessage stores what arrived as it arrived. Where it cannot be read, its place is a hash of it, so that parking it
// twice still stores one.
func (f *Fabric) parkMessage(
	ctx context.Context, stream string, msg *nats.Msg, letter DeadLetter, now time.Time,
) error {
	letter.Ref, letter.Replay, _ = DecodeRef(stream, wireOf(msg.Subject, msg.Header, msg.Data))
	letter.OriginalSubject, letter.Body, letter.LastSeen = msg.Subject, msg.Data, now
	header := carried(msg.Header)
	if id := msg.Header.Get(nats.MsgIdHdr); id != "" {
		header.Set(naming.HeaderOriginalMsgID, id)
	}
	return f.storeLetter(ctx, stream, letter, header)
}

// Announce see DeadLetterBox.
func (f *Fabric) Announce(ctx context.Context, stream string, letter DeadLetter) error {
	if letter.OriginalSubject == "" {
		subject, err := naming.QueueSubject(stream, letter.Ref.Tenant, string(letter.Ref.Kind))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrBadRef, err)
		}
		letter.OriginalSubject = subject
	}
	if letter.Body == nil {
		letter.Body, _ = json.Marshal(letter.Ref) // strings
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.PublishTimeout)
	defer cancel()
	return f.storeLetter(ctx, stream, letter, nats.Header{})
}

// storeLetter publishes to the letter's own subject, which must be empty: whoever comes second finds the first one there.
func (f *Fabric) storeLetter(ctx context.Context, stream string, letter DeadLetter, header nats.Header) error {
	place := letter.Place(stream)
	subject, err := naming.DeadLetterSubject(place)
	if err != nil {
		return fmt.Errorf("%w: dead letter: %w", ErrBadRef, err)
	}
	name, err := naming.DeadLetterStreamName(stream)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	js, err := f.jetStream()
	if err != nil {
		return err
	}
	f.describe(header, letter, place)
	msg := &nats.Msg{Subject: subject, Header: header, Data: letter.Body}
	_, err = js.PublishMsg(ctx, msg, stored(name, jetstream.WithExpectLastSequencePerSubject(0))...)
	if err == nil {
		return nil
	}
	if !alreadyThere(err) {
		return fmt.Errorf("store dead letter: %w", interpret(err))
	}
	return f.sameLetter(ctx, js, name, msg)
}

// alreadyThere: another message is the subject's last. The second code is what replicated streams answer.
func alreadyThere(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// sameLetter is nil if the stored dead letter names the same row and recipient.
func (f *Fabric) sameLetter(ctx context.Context, js jetstream.JetStream, stream string, msg *nats.Msg) error {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return fmt.Errorf("compare dead letter: %w", interpret(err))
	}
	stored, err := s.GetLastMsgForSubject(ctx, msg.Subject)
	if err != nil {
		return fmt.Errorf("compare dead letter: %w", interpret(err))
	}
	for _, h := range []string{naming.HeaderRow, naming.HeaderRecipient} {
		if stored.Header.Get(h) != msg.Header.Get(h) {
			return fmt.Errorf("store dead letter %s: %w", msg.Subject, ErrMismatch)
		}
	}
	return nil
}

// Place is where a letter is kept. A reference that could not be read in full is kept under the hash of what arrived.
func (letter DeadLetter) Place(stream string) naming.DeadLetter {
	d := naming.DeadLetter{
		Stream: stream, Tenant: letter.Ref.Tenant, Kind: string(letter.Ref.Kind), Row: letter.Ref.RowID,
		Recipient: letter.Recipient, Version: letter.Ref.Version, Replay: int64(letter.Replay),
	}
	if d.Row == "" || d.Version == 0 || d.Tenant == "" || d.Kind == "" {
		d.Row, d.Version = naming.DeadLetterRow(letter.OriginalSubject, letter.Body), 0
	}
	return d
}

// carried copies the headers that are the sender's own. Nats-* ones would be obeyed again, and a Status would be taken for
// the broker's own by who reads the dead letter.
func carried(in nats.Header) nats.Header {
	out := maps.Clone(in)
	if out == nil {
		out = nats.Header{}
	}
	maps.DeleteFunc(out, func(k string, _ []string) bool {
		return strings.HasPrefix(strings.ToLower(k), "nats-") || strings.EqualFold(k, "Status")
	})
	return out
}

func (f *Fabric) describe(h nats.Header, letter DeadLetter, place naming.DeadLetter) {
	text := letter.Error
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	for k, v := range map[string]string{
		naming.HeaderOriginalSubject: letter.OriginalSubject,
		naming.HeaderTenant:          place.Tenant,
		naming.HeaderKind:            place.Kind,
		naming.HeaderRow:             place.Row,
		naming.HeaderRecipient:       place.Recipient,
		naming.HeaderVersion:         strconv.FormatInt(place.Version, 10),
		naming.HeaderReplay:          strconv.Itoa(letter.Replay),
		naming.HeaderAttempts:        strconv.Itoa(letter.Attempts),
		naming.HeaderReason:          letter.Reason,
		naming.HeaderError:           oneLine(text),
		naming.HeaderFirstSeen:       stamp(letter.FirstSeen),
		naming.HeaderLastSeen:        stamp(letter.LastSeen),
		naming.HeaderInstance:        f.cfg.Instance,
	} {
		h.Set(k, v)
	}
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// letterOf reads a stored dead letter back.
func letterOf(subject string, header nats.Header, body []byte, seq uint64) (DeadLetter, error) {
	place, err := naming.ParseDeadLetterSubject(subject)
	if err != nil {
		return DeadLetter{}, fmt.Errorf("%w: %w", ErrBadRef, err)
	}
	d := DeadLetter{
		Ref:       EventRef{Tenant: place.Tenant, Kind: EventKind(place.Kind), RowID: place.Row, Version: place.Version},
		Recipient: place.Recipient, Replay: int(place.Replay),
		OriginalSubject: header.Get(naming.HeaderOriginalSubject), Body: body, Reason: header.Get(naming.HeaderReason),
		Error: header.Get(naming.HeaderError), Sequence: seq,
	}
	if place.Version == 0 {
		d.Ref.RowID = ""
	}
	d.Attempts, _ = strconv.Atoi(header.Get(naming.HeaderAttempts))
	d.FirstSeen, _ = time.Parse(time.RFC3339Nano, header.Get(naming.HeaderFirstSeen))
	d.LastSeen, _ = time.Parse(time.RFC3339Nano, header.Get(naming.HeaderLastSeen))
	return d, nil
}
