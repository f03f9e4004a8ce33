package server

import (
	"crypto/x509"
	"testing"
	"time"
)

// Holds REQ-205: a leaf is kept while it fits, and replaced in good time, by the same authority.
func TestLeaf(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	ca, err := newAuthority("Compass ns/main", now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := newAuthority("Compass ns/main", now)
	if err != nil {
		t.Fatal(err)
	}
	names := hostNames("main-server", "ns")
	leaf, err := ca.issue(names, now)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		ca    authority
		names []string
		now   time.Time
		fits  bool
	}{
		"new":               {ca, names, now, true},
		"two thirds on":     {ca, names, now.Add(leafLife*2/3 - time.Hour), true},
		"near its end":      {ca, names, now.Add(leafLife*2/3 + time.Hour), false},
		"other names":       {ca, names[:2], now, false},
		"another authority": {other, names, now, false},
	} {
		if got := fits(leaf.certificate, c.ca, c.names, c.now); got != c.fits {
			t.Errorf("%s: fits %v, want %v", name, got, c.fits)
		}
	}
	if fits(nil, ca, names, now) || fits([]byte("rubbish"), ca, names, now) {
		t.Error("nothing fits")
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.certificate)
	parsed, err := parseCertificate(leaf.certificate)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := parsed.Verify(x509.VerifyOptions{Roots: pool, DNSName: name, CurrentTime: now.Add(time.Hour)}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := parsed.Verify(x509.VerifyOptions{Roots: pool, DNSName: "evil.example", CurrentTime: now}); err == nil {
		t.Error("the leaf is good for any name")
	}
}

// Whoever can join the NATS servers is one of them: the peers' certificate opens both ends, and the Servers' leaf neither.
func TestPeers(t *testing.T) {
	t.Parallel()
	now := time.Now()
	by, leaf, err := newPeers("*.main-nats.compass.svc", now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := newAuthority("Compass compass/main", now)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := other.issue([]string{"main-nats-0.main-nats.compass.svc"}, now)
	if err != nil {
		t.Fatal(err)
	}
	verify := func(a authority, usage x509.ExtKeyUsage) error {
		t.Helper()
		c, err := parseCertificate(a.certificate)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(by.certificate)
		_, err = c.Verify(x509.VerifyOptions{
			Roots: pool, DNSName: "main-nats-0.main-nats.compass.svc", CurrentTime: now.Add(5 * 365 * 24 * time.Hour), KeyUsages: []x509.ExtKeyUsage{usage},
		})
		return err
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := verify(leaf, usage); err != nil {
			t.Errorf("usage %d: %v", usage, err)
		}
		if verify(stranger, usage) == nil {
			t.Errorf("usage %d: another authority's leaf is taken", usage)
		}
	}
}
