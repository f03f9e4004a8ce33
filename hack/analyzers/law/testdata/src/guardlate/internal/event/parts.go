package event

type Name string

type Ref struct {
	Tenant, RowID, Scope string
	Kind                 Name
	Version              int64
}

type Event struct {
	Ref
	Seq uint64
}

type Fact struct{ ref Ref }

func (f Fact) Ref() Ref { return f.ref }

type Digest string

type Envelope struct {
	producer string
	digest   *Digest
	ref      Ref
}

func (e Envelope) Digest() (Digest, bool) { return *e.digest, e.digest != nil }

func Decode([]byte) (Envelope, error) { return Envelope{}, nil }

type Instance struct{ id string }

type Bus struct{}

func (b *Bus) emit(Ref) error { return nil }

func (b *Bus) Next() Event { return Event{} }

type local interface{ emit(Ref) error }

type claims struct{}

func (c *claims) take(Digest) bool { return true }
func (c *claims) release(Digest)   {}

type Bridge struct {
	instance Instance
	local    local
	claims   *claims
}

type Received struct {
	Tenant, Event string
	Envelope      []byte
}
