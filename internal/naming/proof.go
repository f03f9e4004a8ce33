package naming

import (
	"encoding/base64"
	"strconv"
	"strings"
)

// RunnerScheme leads the Authorization header of a Runner's Connect calls.
const RunnerScheme = "Runner"

// A refusal whose cause is that the session is not, or no longer, the Runner's has SessionOver under MetaSession. The code is
// NotFound as for anything else that is not there (REQ-135), so a relayed call needs it to tell a lost session from an unknown
// channel.
const (
	MetaSession = "Compass-Session"
	SessionOver = "over"
)

// RunnerProof is how a Runner says who it is in one call: its enrolled key signs Message, and the header carries the
// signature.
type RunnerProof struct {
	Runner    string
	Unix      int64 // seconds; a Server accepts a minute of difference
	Signature []byte
}

// Message is what is signed for a call of the procedure, such as /compass.v1.RunnerService/Heartbeat.
func (p RunnerProof) Message(procedure string) []byte {
	return []byte("compass-runner\n" + procedure + "\n" + p.Runner + "\n" + strconv.FormatInt(p.Unix, 10))
}

// Header is the value of the Authorization header: Runner <id>.<unix seconds>.<base64url signature>.
func (p RunnerProof) Header() string {
	return RunnerScheme + " " + p.Runner + "." + strconv.FormatInt(p.Unix, 10) + "." + base64.RawURLEncoding.EncodeToString(p.Signature)
}

// ParseRunnerProof is the inverse of Header. The error does not repeat the header.
func ParseRunnerProof(header string) (RunnerProof, error) {
	const allowed = "Runner <id>.<unix seconds>.<base64url signature>"
	rest, ok := strings.CutPrefix(header, RunnerScheme+" ")
	parts := strings.Split(rest, ".")
	if !ok || len(parts) != 3 || ValidRunnerID(parts[0]) != nil {
		return RunnerProof{}, refuseSecret("Runner proof", allowed)
	}
	p := RunnerProof{Runner: parts[0]}
	var err error
	if p.Unix, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
		return RunnerProof{}, refuseSecret("Runner proof", allowed)
	}
	if p.Signature, err = base64.RawURLEncoding.DecodeString(parts[2]); err != nil || p.Header() != header {
		return RunnerProof{}, refuseSecret("Runner proof", allowed)
	}
	return p, nil
}

// EnrolmentProof is what a Runner signs to show that it holds the key that it enrolls: its nonce, then the token.
func EnrolmentProof(nonce []byte, token string) []byte {
	return append(append(make([]byte, 0, len(nonce)+len(token)), nonce...), token...)
}
