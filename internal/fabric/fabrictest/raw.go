package fabrictest

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

// header is what a well-formed reference with this body carries.
func header(body []byte) map[string]string {
	sum := sha256.Sum256(body)
	return map[string]string{
		naming.HeaderProducer: "i_test", naming.HeaderVersion: "1", naming.HeaderDigest: hex.EncodeToString(sum[:]),
	}
}
