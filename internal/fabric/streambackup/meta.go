package streambackup

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/nats-io/jsm.go"
	"github.com/nats-io/jsm.go/api"
)

// meta is what lies beside the messages.
type meta struct {
	Config api.StreamConfig `json:"config"`
	State  api.StreamState  `json:"state"`
}

func readMeta(dir string) (m meta, err error) {
	text, err := os.ReadFile(filepath.Join(dir, jsm.SnapshotMetaFile))
	if err != nil {
		return m, fmt.Errorf("%s is no backup: %w", dir, err)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%s is no backup: %w", dir, err)
	}
	return m, nil
}

func trusting(ca []byte) (*tls.Config, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("what should verify NATS holds no certificate")
	}
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil
}
