package main

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// reloading reads a certificate again when its file changed, so that a renewal needs no restart.
type reloading struct {
	cert, key string

	mu      sync.Mutex
	loaded  *tls.Certificate
	changed time.Time
}

func (r *reloading) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	info, err := os.Stat(r.cert)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	if r.loaded != nil && info.ModTime().Equal(r.changed) {
		return r.loaded, nil
	}
	pair, err := tls.LoadX509KeyPair(r.cert, r.key)
	if err != nil {
		if r.loaded != nil { // half-written; the next handshake looks again
			return r.loaded, nil
		}
		return nil, fmt.Errorf("certificate: %w", err)
	}
	r.loaded, r.changed = &pair, info.ModTime()
	return r.loaded, nil
}
