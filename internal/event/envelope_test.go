package event

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

func newInstance(t *testing.T) Instance {
	t.Helper()
	in, err := NewInstance((&naming.IDs{Now: time.Now, Rand: rand.Reader}).Instance())
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func encoded(t *testing.T, e Envelope) []byte {
	t.Helper()
	b, err := e.encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Holds REQ-140: what was sealed comes back, with its producer, its digest, and nothing else; only the heartbeat has none.
func TestEnvelopeRoundTrip(t *testing.T) {
	t.Parallel()
	self := newInstance(t)
	byName, err := index(Catalogue())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range facts() {
		ref := f.Ref()
		if byName[ref.Kind].Lane != LaneBroadcast {
			continue
		}
		body := encoded(t, seal(self, ref))
		back, err := Decode(body)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(ref, back.Ref()); diff != "" {
			t.Error(diff)
		}
		if back.Producer() != self.ID() {
			t.Errorf("producer %s, want %s", back.Producer(), self.ID())
		}
		if _, ok := back.Digest(); ok == (ref.Kind == NameHeartbeat) {
			t.Errorf("%s: digest there: %v", ref.Kind, ok)
		}
		var fields map[string]any
		if err := json.Unmarshal(body, &fields); err != nil {
			t.Fatal(err)
		}
		for name := range fields {
			if !strings.Contains("producer digest ref version", name) {
				t.Errorf("an envelope carries %q", name)
			}
		}
	}
}

// Holds REQ-140 and ruling B1: the digest is of reference and version. Copies are equal whoever sends them; everything
// else differs.
func TestDigest(t *testing.T) {
	t.Parallel()
	base := MessageUpdated(acme, chanA, msgA, 7).Ref()
	a, _ := seal(newInstance(t), base).Digest()
	b, _ := seal(newInstance(t), base).Digest()
	if a != b {
		t.Error("the producer enters the digest")
	}
	for name, ref := range map[string]Ref{
		"second edit":    MessageUpdated(acme, chanA, msgA, 8).Ref(),
		"other row":      MessageUpdated(acme, chanA, msgB, 7).Ref(),
		"other channel":  MessageUpdated(acme, msgB, msgA, 7).Ref(),
		"other event":    MessageVisible(acme, chanA, msgA, 7).Ref(),
		"other tenant":   MessageUpdated(other, chanA, msgA, 7).Ref(),
		"parts shifted":  {Tenant: acme, Kind: NameMessageUpdated, RowID: msgA + "c", Scope: chanA[1:], Version: 7},
		"scope as a row": {Tenant: acme, Kind: NameMessageUpdated, RowID: chanA, Scope: msgA, Version: 7},
	} {
		if digestOf(ref) == a {
			t.Errorf("%s: equal digests", name)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	self := newInstance(t)
	good := wireOf(seal(self, MessageUpdated(acme, chanA, msgA, 7).Ref()))
	beat := wireOf(seal(self, Heartbeat(acme).Ref()))
	foreign := digestOf(MessageUpdated(acme, chanA, msgA, 8).Ref())
	edit := func(w wireEnvelope, f func(*wireEnvelope)) []byte {
		f(&w)
		b, err := json.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	tests := map[string][]byte{
		"nothing":                 nil,
		"no json":                 []byte("{"),
		"empty object":            []byte("{}"),
		"too long":                append(edit(good, func(*wireEnvelope) {}), bytes.Repeat([]byte(" "), maxEnvelope)...),
		"no digest":               edit(good, func(w *wireEnvelope) { w.Digest = nil }),
		"another fact's digest":   edit(good, func(w *wireEnvelope) { w.Digest = &foreign }),
		"version changed":         edit(good, func(w *wireEnvelope) { w.Version = 9 }),
		"no version":              edit(good, func(w *wireEnvelope) { w.Version = 0 }),
		"tenant changed":          edit(good, func(w *wireEnvelope) { w.Ref.Tenant = other }),
		"no tenant":               edit(good, func(w *wireEnvelope) { w.Ref.Tenant = "" }),
		"wildcard tenant":         edit(good, func(w *wireEnvelope) { w.Ref.Tenant = "*" }),
		"row with a dot":          edit(good, func(w *wireEnvelope) { w.Ref.RowID = "a.b" }),
		"no scope":                edit(good, func(w *wireEnvelope) { w.Ref.Scope = "" }),
		"no producer":             edit(good, func(w *wireEnvelope) { w.Producer = "" }),
		"a subject as producer":   edit(good, func(w *wireEnvelope) { w.Producer = "compass.bcast." + acme }),
		"undeclared event":        edit(good, func(w *wireEnvelope) { w.Ref.Kind = "message_burnt" }),
		"queue event":             edit(good, func(w *wireEnvelope) { w.Ref.Kind = NameMessagePosted }),
		"local event":             edit(good, func(w *wireEnvelope) { w.Ref.Kind = NameClientLagged }),
		"heartbeat with a digest": edit(beat, func(w *wireEnvelope) { w.Digest = &foreign }),
		"heartbeat with version":  edit(beat, func(w *wireEnvelope) { w.Version = 1 }),
	}
	for name, body := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Decode(body)
			wantErr(t, err, ErrEnvelope)
		})
	}
	if _, err := Decode(edit(good, func(*wireEnvelope) {})); err != nil {
		t.Errorf("the unedited one is refused: %v", err)
	}
	newer := []byte(strings.Replace(string(edit(good, func(*wireEnvelope) {})), "{", `{"later":1,`, 1))
	if _, err := Decode(newer); err != nil {
		t.Errorf("a newer version's field is refused: %v", err)
	}
}

func wireOf(e Envelope) wireEnvelope {
	return wireEnvelope{Producer: e.producer, Digest: e.digest, Ref: e.ref, Version: e.ref.Version}
}

func TestInstanceIsChecked(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "x", acme, "i_*"} {
		_, err := NewInstance(bad)
		wantErr(t, err, naming.ErrInvalid)
	}
}

func FuzzDecode(f *testing.F) {
	self, err := NewInstance("i_06f0e5k3vdrg0000000000000g")
	if err != nil {
		f.Fatal(err)
	}
	for _, fact := range facts() {
		b, err := seal(self, fact.Ref()).encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := Decode(body)
		if err != nil {
			wantErr(t, err, ErrEnvelope)
			return
		}
		again, err := Decode(encoded(t, e))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e.Ref(), again.Ref()); diff != "" || e.Producer() != again.Producer() {
			t.Fatal(diff)
		}
	})
}
