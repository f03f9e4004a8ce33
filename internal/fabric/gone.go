package fabric

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
)

// goneBox hears the broker say that a message had no subscriber. That answer is sent before the one to a ping which
// follows the message, so after a flush it is known: no waiting, no guessing.
type goneBox struct {
	nc     *nats.Conn
	prefix string
	heard  chan *nats.Msg

	mu   sync.Mutex
	last uint64
	gone map[string]struct{}
}

func newGoneBox(nc *nats.Conn) (*goneBox, error) {
	b := &goneBox{nc: nc, prefix: nc.NewInbox() + ".", heard: make(chan *nats.Msg, 8192), gone: map[string]struct{}{}}
	if _, err := nc.ChanSubscribe(b.prefix+"*", b.heard); err != nil {
		return nil, fmt.Errorf("subscribe to refusals: %w", interpret(err))
	}
	return b, nil
}

// box returns that of the connection of now.
func (l *link) box() (*goneBox, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if l.refusals == nil || l.refusals.nc != l.nc {
		b, err := newGoneBox(l.nc)
		if err != nil {
			return nil, err
		}
		l.refusals = b
	}
	return l.refusals, nil
}

// deliver sends a one-way message; ErrRunnerGone if the broker had nobody to give it to.
func (l *link) deliver(ctx context.Context, msg *nats.Msg) error {
	b, err := l.box()
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.last++
	token := strconv.FormatUint(b.last, 36)
	b.mu.Unlock()
	msg.Reply = b.prefix + token
	if err := b.nc.PublishMsg(msg); err != nil {
		return interpret(err)
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.PublishTimeout)
	defer cancel()
	if err := b.nc.FlushWithContext(ctx); err != nil {
		return interpret(err)
	}
	if b.wasRefused(token) {
		return ErrRunnerGone
	}
	return nil
}

// wasRefused takes in what was heard and answers for one message. Whoever drains the channel notes everybody's refusals;
// a message that somebody real answered is no refusal.
func (b *goneBox) wasRefused(token string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for {
		select {
		case m := <-b.heard:
			if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
				b.gone[m.Subject[len(b.prefix):]] = struct{}{}
			}
		default:
			_, refused := b.gone[token]
			delete(b.gone, token)
			return refused
		}
	}
}
