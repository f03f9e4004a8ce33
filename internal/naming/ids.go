package naming

import (
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"time"
)

// What each id begins with. The rest is idChars characters of base32hex, lower case: a UUIDv7, so ids sort by time.
const (
	TenantPrefix     = "t_"
	AccountPrefix    = "a_"
	ChannelPrefix    = "c_"
	MessagePrefix    = "m_"
	TokenPrefix      = "k_" // the id of a token's row; not a secret
	ConnectionPrefix = "n_" // one live client stream
	InstancePrefix   = "i_" // one process, the producer of envelopes
	RunnerPrefix     = "r-" // see ValidRunnerID
)

const idChars = 26

// The alphabets: ids sort as their bytes do (base32hex); secrets use the one without look-alikes 0, 1, 8 and 9.
var (
	idEncoding     = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)
	secretEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
)

// IDs makes new ids and secrets. Both fields are required: Rand is crypto/rand.Reader in a process and a seeded source in
// a simulation. It is safe for concurrent use whatever its Rand is. A Rand that fails panics: a process without
// randomness must not go on.
type IDs struct {
	Now  func() time.Time
	Rand io.Reader

	mu sync.Mutex
}

// Tenant returns a new tenant id.
func (g *IDs) Tenant() string { return TenantPrefix + g.id() }

// Account returns a new account id.
func (g *IDs) Account() string { return AccountPrefix + g.id() }

// Channel returns a new channel id.
func (g *IDs) Channel() string { return ChannelPrefix + g.id() }

// Message returns a new message id.
func (g *IDs) Message() string { return MessagePrefix + g.id() }

// Runner returns a new Runner id; see ValidRunnerID for its hyphen.
func (g *IDs) Runner() string { return RunnerPrefix + g.id() }

// TokenID returns a new id for the row of an API or Runner token.
func (g *IDs) TokenID() string { return TokenPrefix + g.id() }

// Connection returns a new id of a live client stream.
func (g *IDs) Connection() string { return ConnectionPrefix + g.id() }

// Instance returns a new id of a process.
func (g *IDs) Instance() string { return InstancePrefix + g.id() }

// id is a UUIDv7 (RFC 9562): 48 bits of milliseconds, then version, variant and 74 random bits.
func (g *IDs) id() string {
	var b [16]byte
	g.read(b[6:])
	var ms [8]byte
	binary.BigEndian.PutUint64(ms[:], uint64(max(g.Now().UnixMilli(), 0)))
	copy(b[:6], ms[2:])
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	return idEncoding.EncodeToString(b[:])
}

func (g *IDs) secret() string {
	var b [32]byte
	g.read(b[:])
	return secretEncoding.EncodeToString(b[:])
}

func (g *IDs) read(b []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := io.ReadFull(g.Rand, b); err != nil {
		panic(fmt.Sprintf("naming: read randomness: %v", err))
	}
}
