package fabric

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go"
)

// Advisory is word from JetStream that somebody else made, changed or deleted one of our streams or consumers. It is a hint,
// and may be lost: whoever gets it looks.
type Advisory struct {
	Stream string // the DeliveryStream
	Change string // CREATED, UPDATED, DELETED, PAUSE …
	What   string // STREAM or CONSUMER
}

const (
	advisoryRoot = "$JS.EVENT.ADVISORY."

	ofStream, ofConsumer         = "STREAM", "CONSUMER"
	isCreated, isUpdated, isGone = "CREATED", "UPDATED", "DELETED"
)

// Advisories calls fn, serially, for each change of a stream or consumer that is named like ours and that was not made through
// this Fabric. It needs the operator's user: nobody else may hear them.
func (f *Fabric) Advisories(ctx context.Context, fn func(Advisory)) (Unsubscribe, error) {
	return f.hear(ctx, advisoryRoot+">", func(_ context.Context, msg *nats.Msg) {
		if a, ok := parseAdvisory(msg.Subject); ok && !f.echo.heard(a) {
			fn(a)
		}
	})
}

// parseAdvisory reads $JS.EVENT.ADVISORY.<what>.<change>.<stream>[.<consumer>]; the body tells nothing that looking does
// not tell better.
func parseAdvisory(subject string) (Advisory, bool) {
	t := strings.Split(strings.TrimPrefix(subject, advisoryRoot), ".")
	if len(t) < 3 || (t[0] != ofStream && t[0] != ofConsumer) {
		return Advisory{}, false
	}
	switch t[1] {
	case isCreated, isUpdated, isGone, "PAUSE":
	default: // quorum, leaders, exhausted and terminated messages: not a change of configuration
		return Advisory{}, false
	}
	name, ours := strings.CutPrefix(strings.TrimSuffix(t[2], "_DLQ"), "CMP_")
	return Advisory{Stream: name, Change: t[1], What: t[0]}, ours
}
