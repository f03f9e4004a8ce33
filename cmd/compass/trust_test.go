package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A Server whose authority was replaced is reached again without a restart; a file that is being written costs nothing.
func TestAuthorityIsReadAgain(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	file, written := filepath.Join(t.TempDir(), "ca.crt"), time.Unix(1, 0)
	write := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		written = written.Add(time.Second)
		if err := os.Chtimes(file, written, written); err != nil {
			t.Fatal(err)
		}
	}
	ask := func(c *http.Client) error {
		q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		a, err := c.Do(q)
		if err == nil {
			err = a.Body.Close()
		}
		return err
	}

	another := otherAuthority(t)
	write(another)
	client, err := httpClient(file)
	if err != nil {
		t.Fatal(err)
	}
	if ask(client) == nil {
		t.Error("a server is trusted whose authority is not in the file")
	}
	write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	if err := ask(client); err != nil {
		t.Errorf("after the authority was replaced: %v", err)
	}
	write([]byte("half"))
	if err := ask(client); err != nil {
		t.Errorf("while the file is written: %v", err)
	}
	write(another)
	if ask(client) == nil {
		t.Error("an authority that was taken away is trusted still")
	}
	if _, err := httpClient(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there is taken")
	}
}

// otherAuthority is a certificate that has signed nothing but itself.
func otherAuthority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
