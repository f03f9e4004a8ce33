package fabric

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// errNobodyServes says: the account that we connect with reaches nobody who answers such requests.
var errNobodyServes = fmt.Errorf("%w: nobody serves", ErrUnavailable)

// refused carries the words in which a server refused.
type refused struct {
	what     string
	sentinel error
	words    string
}

func (r *refused) Error() string { return r.what + ": " + r.sentinel.Error() + ": " + r.words }
func (r *refused) Unwrap() error { return r.sentinel }

// refusalOf is a server's words in err; empty if it said none.
func refusalOf(err error) string {
	var r *refused
	if errors.As(err, &r) {
		return r.words
	}
	return ""
}

// gatherTime is how long a server has to answer. One that takes longer counts as not answering.
const gatherTime = 2 * time.Second

// refusals joins what servers said that did not say yes.
func refusals(answers []*nats.Msg, what string, sentinel error) error {
	var errs []error
	for _, msg := range answers {
		var r struct {
			Error *struct {
				Description string `json:"description"`
			} `json:"error"`
		}
		if err := json.Unmarshal(msg.Data, &r); err != nil {
			return fmt.Errorf("%s: read answer: %w", what, err)
		}
		if r.Error != nil {
			errs = append(errs, &refused{what, sentinel, r.Error.Description})
		}
	}
	return errors.Join(errs...)
}

// gather asks all servers and returns as soon as expect of them have answered, or when time is up. Fewer answers are no
// error here: the caller knows what they mean.
func (a *Accounts) gather(ctx context.Context, subject string, body []byte, expect int) ([]*nats.Msg, error) {
	nc, _, _, err := a.link.current()
	if err != nil {
		return nil, err
	}
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, interpret(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishMsg(&nats.Msg{Subject: subject, Reply: inbox, Data: body}); err != nil {
		return nil, interpret(err)
	}
	ctx, cancel := context.WithTimeout(ctx, gatherTime)
	defer cancel()
	var answers []*nats.Msg
	for expect <= 0 || len(answers) < expect {
		msg, err := sub.NextMsgWithContext(ctx)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return answers, nil
		case errors.Is(err, nats.ErrNoResponders):
			return nil, fmt.Errorf("%w %s", errNobodyServes, subject)
		case err != nil:
			return answers, interpret(err)
		}
		answers = append(answers, msg)
	}
	return answers, nil
}
