package streambackup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/jsm.go"
	"github.com/nats-io/jsm.go/api"
	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// ErrInUse says: the stream is there and holds messages, which a restore would lose.
var ErrInUse = errors.New("stream is there and holds messages")

// The codes of JetStream that are told apart (server/errors.json).
const (
	codeNoStream = 10059
	codeInUse    = 10130 // a stream of that name is there
)

// tries bounds how often a stream is removed that somebody makes anew while it is to be restored, as the operator does.
const tries = 20

// Options say whose streams, where they are and how one enters.
type Options struct {
	Stream      string   // the DeliveryStream
	URLs        []string // of NATS
	Credentials fabric.Credentials
	CA          []byte // PEM; empty: the system's roots verify
	NATS        []nats.Option
}

// Seen is one stream as it was saved, or as it is after it was restored.
type Seen struct {
	Name        string
	Messages    uint64
	First, Last uint64 // sequences
	Consumers   int
}

// session is one connection, and the streams that are meant: the queue and its dead letters.
type session struct {
	nc      *nats.Conn
	mgr     *jsm.Manager
	streams []string
}

func open(o Options) (*session, error) {
	queue, err := naming.StreamName(o.Stream)
	if err != nil {
		return nil, err
	}
	dead, err := naming.DeadLetterStreamName(o.Stream)
	if err != nil {
		return nil, err
	}
	settings := []nats.Option{
		nats.Name("compass-backup"), nats.UserJWT(o.Credentials.JWT, o.Credentials.Sign), nats.CustomInboxPrefix(o.Credentials.InboxPrefix),
	}
	if len(o.CA) > 0 {
		tls, err := trusting(o.CA)
		if err != nil {
			return nil, err
		}
		settings = append(settings, nats.Secure(tls))
	}
	s := nats.GetDefaultOptions()
	s.Servers = o.URLs
	for _, set := range append(settings, o.NATS...) {
		if err := set(&s); err != nil {
			return nil, fmt.Errorf("connect to NATS: %w", err)
		}
	}
	nc, err := s.Connect()
	if err != nil {
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	mgr, err := jsm.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("connect to NATS: %w", err)
	}
	return &session{nc, mgr, []string{queue, dead}}, nil
}

// Save writes each stream with its consumers into a folder of its name below dir, which must hold none yet. A folder that is
// there is whole: it is given its name when all of it has come.
func Save(ctx context.Context, dir string, o Options) ([]Seen, error) {
	s, err := open(o)
	if err != nil {
		return nil, err
	}
	defer s.nc.Close()
	var all []Seen
	for _, name := range s.streams {
		seen, err := s.save(ctx, name, filepath.Join(dir, name))
		if err != nil {
			return all, fmt.Errorf("save stream %s: %w", name, err)
		}
		all = append(all, seen)
	}
	return all, nil
}

func (s *session) save(ctx context.Context, name, dir string) (Seen, error) {
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return Seen{}, errors.Join(fmt.Errorf("%s is there: choose a new folder", dir), err)
	}
	stream, err := s.mgr.LoadStream(name)
	if err != nil {
		return Seen{}, err
	}
	part := dir + ".part"
	if err := errors.Join(os.RemoveAll(part), os.MkdirAll(filepath.Dir(dir), 0o700)); err != nil {
		return Seen{}, err
	}
	if _, err := stream.SnapshotToDirectory(ctx, part, jsm.SnapshotConsumers(), jsm.SnapshotHealthCheck()); err != nil {
		return Seen{}, errors.Join(err, os.RemoveAll(part))
	}
	meta, err := readMeta(part)
	if err != nil {
		return Seen{}, err
	}
	return seenOf(name, meta.State), os.Rename(part, dir)
}

// Restore puts back what Save wrote. A stream that is there and empty gives way, for the operator makes one that is missing
// within moments; one that holds messages is ErrInUse, before anything is changed, unless replace is said.
func Restore(ctx context.Context, dir string, replace bool, o Options) ([]Seen, error) {
	s, err := open(o)
	if err != nil {
		return nil, err
	}
	defer s.nc.Close()
	for _, name := range s.streams {
		meta, err := readMeta(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("restore stream %s: %w", name, err)
		}
		if meta.Config.Name != name {
			return nil, fmt.Errorf("restore stream %s: the backup is of stream %s", name, meta.Config.Name)
		}
		if held, err := s.held(name); err != nil || held > 0 && !replace {
			return nil, fmt.Errorf("restore stream %s: %w", name, errors.Join(err, inUse(held)))
		}
	}
	var all []Seen
	for _, name := range s.streams {
		seen, err := s.restore(ctx, name, filepath.Join(dir, name), replace)
		if err != nil {
			return all, fmt.Errorf("restore stream %s: %w", name, err)
		}
		all = append(all, seen)
	}
	return all, nil
}

func inUse(held uint64) error {
	if held == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d", ErrInUse, held)
}

// restore removes what is in the way and restores, again where somebody was quicker.
func (s *session) restore(ctx context.Context, name, dir string, replace bool) (Seen, error) {
	var err error
	for range tries {
		var held uint64
		if held, err = s.held(name); err != nil {
			return Seen{}, err
		}
		if held > 0 && !replace {
			return Seen{}, inUse(held)
		}
		if err = s.remove(name); err != nil {
			return Seen{}, err
		}
		var state *api.StreamState
		if _, state, err = s.mgr.RestoreSnapshotFromDirectory(ctx, name, dir); err == nil {
			return seenOf(name, *state), nil
		}
		if !jsm.IsNatsError(err, codeInUse) {
			return Seen{}, err
		}
	}
	return Seen{}, fmt.Errorf("somebody makes it anew each time that it is removed: %w", err)
}

// held is how many messages the stream has; one that is not there has none.
func (s *session) held(name string) (uint64, error) {
	stream, err := s.mgr.LoadStream(name)
	if jsm.IsNatsError(err, codeNoStream) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	state, err := stream.State()
	return state.Msgs, err
}

func (s *session) remove(name string) error {
	if err := s.mgr.DeleteStream(name); err != nil && !jsm.IsNatsError(err, codeNoStream) {
		return err
	}
	return nil
}

func seenOf(name string, state api.StreamState) Seen {
	return Seen{Name: name, Messages: state.Msgs, First: state.FirstSeq, Last: state.LastSeq, Consumers: state.Consumers}
}
