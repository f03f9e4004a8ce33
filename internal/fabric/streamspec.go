package fabric

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// StreamSpec is what one DeliveryStream wants of JetStream: the work queue, its dead letters and the durable consumer.
// Zero values mean the defaults of api.md.
type StreamSpec struct {
	Name            string
	Replicas        int           // default 1
	MaxAge          time.Duration // default 168h
	MaxBytes        int64         // default 1 GiB; a full stream refuses, it drops nothing
	DuplicateWindow time.Duration // default DefaultDuplicateWindow
	MaxPerTenant    int64         // unacknowledged references of one tenant and kind; default 10,000
	AckWait         time.Duration // default DefaultAckWait
	MaxAckPending   int           // default DefaultMaxAckPending

	DeadMaxAge   time.Duration // default 720h
	DeadMaxBytes int64         // default 256 MiB; the oldest dead letters make room
}

// metaStream marks what we made, so that foreign streams of the same name are seen for what they are.
const metaStream = naming.Group + "/stream"

// maxRefSize bounds a reference with its headers; one is about 500 bytes.
const maxRefSize = 8 << 10

func (s StreamSpec) withDefaults() StreamSpec {
	setDefault(&s.Replicas, 1)
	setDefault(&s.MaxAge, 168*time.Hour)
	setDefault(&s.MaxBytes, 1<<30)
	setDefault(&s.DuplicateWindow, DefaultDuplicateWindow)
	setDefault(&s.MaxPerTenant, 10_000)
	setDefault(&s.AckWait, DefaultAckWait)
	setDefault(&s.MaxAckPending, DefaultMaxAckPending)
	setDefault(&s.DeadMaxAge, 720*time.Hour)
	setDefault(&s.DeadMaxBytes, 256<<20)
	return s
}

// check refuses what the broker would refuse or quietly change.
func (s StreamSpec) check() error { //nolint:gocyclo // a list of independent refusals
	var bad []error
	if err := naming.ValidName(s.Name); err != nil {
		bad = append(bad, err)
	}
	if s.DuplicateWindow > s.MaxAge || s.DuplicateWindow < 100*time.Millisecond {
		bad = append(bad, errors.New("DuplicateWindow must lie between 100ms and MaxAge"))
	}
	if s.Replicas < 1 || s.Replicas > 5 || s.AckWait <= 0 || s.MaxAckPending <= 0 || s.MaxPerTenant <= 0 ||
		s.MaxBytes <= 0 || s.DeadMaxBytes <= 0 || s.DeadMaxAge <= 0 {
		bad = append(bad, errors.New("a number or duration is out of range"))
	}
	if len(bad) > 0 {
		return fmt.Errorf("%w: stream %q: %w", ErrConfig, s.Name, errors.Join(bad...))
	}
	return nil
}

// queueConfig is the work queue: what was acked is gone, and a full one refuses (design S1).
func (s StreamSpec) queueConfig() (jetstream.StreamConfig, error) {
	name, err1 := naming.StreamName(s.Name)
	filter, err2 := naming.QueueFilter(s.Name)
	return jetstream.StreamConfig{
		Name:                 name,
		Description:          "References of DeliveryStream " + s.Name + "; disposable",
		Subjects:             []string{filter},
		Retention:            jetstream.WorkQueuePolicy,
		Storage:              jetstream.FileStorage,
		Replicas:             s.Replicas,
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		MaxMsgsPerSubject:    s.MaxPerTenant,
		MaxBytes:             s.MaxBytes,
		MaxAge:               s.MaxAge,
		MaxMsgSize:           maxRefSize,
		Duplicates:           s.DuplicateWindow,
		Metadata:             map[string]string{metaStream: s.Name},
	}, errors.Join(err1, err2)
}

// deadConfig is the dead-letter stream. It drops its oldest rather than refuse: a refused dead letter would keep its
// original in the queue for ever.
func (s StreamSpec) deadConfig() (jetstream.StreamConfig, error) {
	name, err1 := naming.DeadLetterStreamName(s.Name)
	filter, err2 := naming.DeadLetterFilter(s.Name)
	return jetstream.StreamConfig{
		Name:        name,
		Description: "Dead letters of DeliveryStream " + s.Name,
		Subjects:    []string{filter},
		Retention:   jetstream.LimitsPolicy,
		Storage:     jetstream.FileStorage,
		Replicas:    s.Replicas,
		Discard:     jetstream.DiscardOld,
		MaxBytes:    s.DeadMaxBytes,
		MaxAge:      s.DeadMaxAge,
		MaxMsgSize:  -1,
		Duplicates:  min(DefaultDuplicateWindow, s.DeadMaxAge),
		AllowDirect: true,
		Metadata:    map[string]string{metaStream: s.Name},
	}, errors.Join(err1, err2)
}

// consumerConfig is the one durable consumer. MaxDeliver is endless and BackOff unset: the broker would drop an exhausted
// message out of everybody's sight, and a BackOff would overwrite AckWait (measured); the fabric counts.
func (s StreamSpec) consumerConfig() (jetstream.ConsumerConfig, error) {
	filter, err := naming.QueueFilter(s.Name)
	return jetstream.ConsumerConfig{
		Durable:       naming.Durable,
		Description:   "The worker of DeliveryStream " + s.Name,
		FilterSubject: filter,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       s.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: s.MaxAckPending,
		Metadata:      map[string]string{metaStream: s.Name},
	}, err
}

// drift collects the names of what differs.
type drift []string

func (d *drift) note(name string, same bool) {
	if !same {
		*d = append(*d, name)
	}
}

// streamDrift compares what we own; the rest of a stream's configuration is the broker's.
func streamDrift(have, want jetstream.StreamConfig) []string {
	var d drift
	d.note("subjects", slices.Equal(have.Subjects, want.Subjects))
	d.note("replicas", have.Replicas == want.Replicas)
	d.note("discard", have.Discard == want.Discard && have.DiscardNewPerSubject == want.DiscardNewPerSubject)
	d.note("maxMessagesPerTenant", want.MaxMsgsPerSubject <= 0 || have.MaxMsgsPerSubject == want.MaxMsgsPerSubject)
	d.note("maxMessages", have.MaxMsgs <= 0)
	d.note("maxBytes", have.MaxBytes == want.MaxBytes)
	d.note("maxAge", have.MaxAge == want.MaxAge)
	d.note("maxMessageSize", have.MaxMsgSize == want.MaxMsgSize)
	d.note("duplicateWindow", have.Duplicates == want.Duplicates)
	d.note("allowDirect", have.AllowDirect == want.AllowDirect)
	d.note("noAck", !have.NoAck)
	d.note("sealed", !have.Sealed)
	// A publisher could remove or delay messages of others where these are on.
	d.note("forbiddenFlags", !have.AllowRollup && !have.AllowMsgTTL && !have.AllowMsgCounter && !have.AllowMsgSchedules)
	d.note("owner", have.Metadata[metaStream] == want.Metadata[metaStream])
	return d
}

// overlayStream returns have with everything that streamDrift compares as in want.
func overlayStream(have, want jetstream.StreamConfig) jetstream.StreamConfig {
	have.Subjects, have.Replicas = want.Subjects, want.Replicas
	have.Discard, have.DiscardNewPerSubject = want.Discard, want.DiscardNewPerSubject
	have.MaxMsgsPerSubject, have.MaxMsgs, have.MaxBytes = want.MaxMsgsPerSubject, -1, want.MaxBytes
	have.MaxAge, have.MaxMsgSize, have.Duplicates = want.MaxAge, want.MaxMsgSize, want.Duplicates
	have.AllowDirect, have.NoAck, have.Sealed = want.AllowDirect, false, false
	have.AllowRollup, have.AllowMsgTTL, have.AllowMsgCounter, have.AllowMsgSchedules = false, false, false, false
	have.Metadata = overlayMeta(have.Metadata, want.Metadata)
	return have
}

// immutableDrift names what no update can change.
func immutableDrift(have, want jetstream.StreamConfig) []string {
	var d drift
	d.note("storage", have.Storage == want.Storage)
	d.note("retention", have.Retention == want.Retention)
	return d
}

func consumerDrift(have, want jetstream.ConsumerConfig) []string {
	var d drift
	d.note("filter", have.FilterSubject == want.FilterSubject && len(have.FilterSubjects) == 0)
	d.note("ackWait", have.AckWait == want.AckWait)
	d.note("backoff", len(have.BackOff) == 0)
	d.note("maxDeliver", have.MaxDeliver == want.MaxDeliver)
	d.note("maxAckPending", have.MaxAckPending == want.MaxAckPending)
	d.note("paused", have.PauseUntil == nil || have.PauseUntil.IsZero())
	d.note("headersOnly", !have.HeadersOnly)
	d.note("owner", have.Metadata[metaStream] == want.Metadata[metaStream])
	return d
}

func overlayConsumer(have, want jetstream.ConsumerConfig) jetstream.ConsumerConfig {
	have.FilterSubject, have.FilterSubjects = want.FilterSubject, nil
	have.AckWait, have.BackOff = want.AckWait, nil
	have.MaxDeliver, have.MaxAckPending = want.MaxDeliver, want.MaxAckPending
	have.PauseUntil, have.HeadersOnly = nil, false
	have.Metadata = overlayMeta(have.Metadata, want.Metadata)
	return have
}

// immutableConsumer names what only a new consumer can change; a consumer holds no message, so making it anew loses none.
func immutableConsumer(have, want jetstream.ConsumerConfig) []string {
	var d drift
	d.note("ackPolicy", have.AckPolicy == want.AckPolicy)
	d.note("deliverPolicy", have.DeliverPolicy == want.DeliverPolicy)
	return d
}

func overlayMeta(have, want map[string]string) map[string]string {
	out := make(map[string]string, len(have)+len(want))
	for k, v := range have {
		out[k] = v
	}
	for k, v := range want {
		out[k] = v
	}
	return out
}
