package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"
)

// httpClient trusts the system's authorities, or those in the file alone.
func httpClient(caFile string) (*http.Client, error) {
	if caFile == "" {
		return &http.Client{Transport: transport(nil)}, nil
	}
	t := &trusting{file: caFile}
	if _, err := t.current(); err != nil {
		return nil, err
	}
	return &http.Client{Transport: t}, nil
}

func transport(pool *x509.CertPool) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // it is one
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
	return t
}

// trusting trusts the authorities in a file, and reads it again when it changed: an authority that was replaced needs no
// restart of whoever trusts it.
type trusting struct {
	file string

	mu      sync.Mutex
	loaded  *http.Transport
	changed time.Time
}

// RoundTrip see http.RoundTripper.
func (t *trusting) RoundTrip(q *http.Request) (*http.Response, error) {
	through, err := t.current()
	if err != nil {
		return nil, err
	}
	return through.RoundTrip(q)
}

func (t *trusting) current() (*http.Transport, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pool, changed, err := t.read()
	switch {
	case err != nil && t.loaded == nil:
		return nil, err
	case err != nil || pool == nil: // half-written, the next request looks again; or as it was
		return t.loaded, nil
	case t.loaded != nil:
		t.loaded.CloseIdleConnections()
	}
	t.loaded, t.changed = transport(pool), changed
	return t.loaded, nil
}

// read returns the authorities and since when they are so; none where nothing changed.
func (t *trusting) read() (*x509.CertPool, time.Time, error) {
	info, err := os.Stat(t.file)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read certificate authority: %w", err)
	}
	if t.loaded != nil && info.ModTime().Equal(t.changed) {
		return nil, t.changed, nil
	}
	pem, err := os.ReadFile(t.file)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("read certificate authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, time.Time{}, fmt.Errorf("%s holds no PEM certificate", t.file)
	}
	return pool, info.ModTime(), nil
}
