package natstest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
)

// Foreign is somebody else in NATS, who makes streams and accounts of his own.
type Foreign struct {
	nc *nats.Conn
	js jetstream.JetStream
}

// Foreign enters with the text of a credentials file.
func (s *Server) Foreign(tb testing.TB, creds []byte, inbox string) Foreign {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "nats.creds")
	if err := os.WriteFile(file, creds, 0o600); err != nil {
		tb.Fatal(err)
	}
	conn, err := nats.Connect(s.URL(), nats.UserCredentials(file), nats.CustomInboxPrefix(inbox))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		tb.Fatal(err)
	}
	return Foreign{conn, js}
}

// Stream makes a work queue, or changes it.
func (f Foreign) Stream(tb testing.TB, name, subject string, maxAge time.Duration, metadata map[string]string) {
	tb.Helper()
	_, err := f.js.CreateOrUpdateStream(tb.Context(), jetstream.StreamConfig{
		Name: name, Subjects: []string{subject}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage,
		Discard: jetstream.DiscardNew, MaxAge: maxAge, Metadata: metadata,
	})
	if err != nil {
		tb.Fatal(err)
	}
}

// Account pushes an account with the key of its seed, signed by an operator; it takes a user of the system account.
func (f Foreign) Account(tb testing.TB, account, operator []byte, tags ...string) {
	tb.Helper()
	own, err1 := nkeys.FromSeed(account)
	signer, err2 := nkeys.FromSeed(operator)
	if err := errors.Join(err1, err2); err != nil {
		tb.Fatal(err)
	}
	public, err := own.PublicKey()
	if err != nil {
		tb.Fatal(err)
	}
	claims := jwt.NewAccountClaims(public)
	claims.Name = "theirs"
	claims.Tags.Add(tags...)
	text, err := claims.Encode(signer)
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := f.nc.Request("$SYS.REQ.CLAIMS.UPDATE", []byte(text), 10*time.Second); err != nil {
		tb.Fatal(err)
	}
}

// Publish stores a message.
func (f Foreign) Publish(tb testing.TB, subject string) {
	tb.Helper()
	if _, err := f.js.Publish(tb.Context(), subject, []byte("kept")); err != nil {
		tb.Fatal(err)
	}
}

// Look returns what a stream holds, and for how long.
func (f Foreign) Look(tb testing.TB, name string) (messages uint64, maxAge time.Duration) {
	tb.Helper()
	s, err := f.js.Stream(tb.Context(), name)
	if err != nil {
		tb.Fatal(err)
	}
	return s.CachedInfo().State.Msgs, s.CachedInfo().Config.MaxAge
}
