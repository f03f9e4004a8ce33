package server

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 90 * 24 * time.Hour
	leafRenew     = leafLife / 3 // what may be left of it
	clockSkew     = 5 * time.Minute
)

// authority signs the certificates of one CompassServer.
type authority struct{ certificate, key []byte } // PEM

// ensureCertificates makes the authority once, and the leaf anew when it nears its end or no longer fits.
func (r *Reconciler) ensureCertificates(ctx context.Context, s *scope) error {
	if s.identity == nil { // nothing is half made; and a Secret of keys must never begin with a token (ensureAdmin)
		return fault.Waiting(v1alpha1.ReasonWaitingForDependency, "the keys of NATS are not made yet: see condition FabricReady")
	}
	if s.server.Spec.Server.TLSSecretRef != nil {
		return r.resolveCertificate(ctx, s)
	}
	kept, err := kube.Keep(ctx, s.kids, s.server, s.secret(s.names.CA), func(have map[string][]byte) (map[string][]byte, error) {
		if len(have[corev1.TLSCertKey]) > 0 && len(have[corev1.TLSPrivateKeyKey]) > 0 {
			return nil, nil
		}
		a, err := newAuthority("Compass "+s.key.String(), r.Now())
		return map[string][]byte{corev1.TLSCertKey: a.certificate, corev1.TLSPrivateKeyKey: a.key}, err
	})
	if err != nil {
		return err
	}
	s.ca = authority{kept[corev1.TLSCertKey], kept[corev1.TLSPrivateKeyKey]}
	secret := s.secret(s.names.TLS)
	live := &corev1.Secret{}
	if err := s.kids.Live.Get(ctx, client.ObjectKeyFromObject(secret), live); client.IgnoreNotFound(err) != nil {
		return fault.Transient(v1alpha1.ReasonApplyFailed, fmt.Errorf("read Secret %s: %w", secret.Name, err))
	}
	secret.Type = corev1.SecretTypeTLS
	secret.Data = map[string][]byte{
		corev1.TLSCertKey: live.Data[corev1.TLSCertKey], corev1.TLSPrivateKeyKey: live.Data[corev1.TLSPrivateKeyKey], "ca.crt": s.ca.certificate,
	}
	names := hostNames(s.names.Server, s.key.Namespace)
	if !fits(secret.Data[corev1.TLSCertKey], s.ca, names, r.Now()) {
		leaf, err := s.ca.issue(names, r.Now())
		if err != nil {
			return fault.Waiting(v1alpha1.ReasonInvalidSecret,
				fmt.Sprintf("Secret %s/%s cannot sign: %v: delete it, and it is made anew", s.key.Namespace, s.names.CA, err))
		}
		secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = leaf.certificate, leaf.key
	}
	_, err = kube.Apply(ctx, s.kids, s.server, secret)
	return err
}

// hostNames are what clients inside the cluster may call a Service.
func hostNames(service, namespace string) []string {
	return []string{
		service, service + "." + namespace, service + "." + namespace + ".svc", service + "." + namespace + ".svc.cluster.local", "localhost",
	}
}

// resolveCertificate reads what somebody else renews, and sees that it is good for where the Servers are.
func (r *Reconciler) resolveCertificate(ctx context.Context, s *scope) error {
	data, key, err := backend.ReadCertificate(ctx, s.kids, s.server)
	if err != nil {
		return err
	}
	invalid := func(what string) error {
		return fault.Waiting(v1alpha1.ReasonInvalidSecret, fmt.Sprintf("key %s of Secret %s: %s", corev1.TLSCertKey, key, what))
	}
	leaf, err := parseCertificate(data[corev1.TLSCertKey])
	if err != nil {
		return invalid(err.Error())
	}
	host := s.names.Server + "." + s.key.Namespace + ".svc"
	if leaf.VerifyHostname(host) != nil {
		return invalid("the certificate is not for " + host + ": add it to its names")
	}
	if !r.Now().Before(leaf.NotAfter) {
		return invalid("the certificate is over: renew it")
	}
	s.ca = authority{certificate: data[backend.KeyCA]}
	return nil
}

func newAuthority(name string, now time.Time) (authority, error) {
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	return sign(template, nil, nil)
}

// newPeers makes an authority and the one leaf that it will ever sign, for both ends of a connection. It lives as long as the
// authority, because a NATS server takes another only at a restart.
func newPeers(names string, now time.Time) (by, leaf authority, err error) {
	if by, err = newAuthority("Compass routes "+names, now); err != nil {
		return by, leaf, err
	}
	leaf, err = by.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: names}, DNSNames: []string{names, "localhost"}, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(authorityLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return by, leaf, err
}

// issue makes a leaf for the names.
func (a authority) issue(names []string, now time.Time) (authority, error) {
	return a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: names[0]}, DNSNames: names, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

func (a authority) sign(template *x509.Certificate) (authority, error) {
	parent, err := parseCertificate(a.certificate)
	if err != nil {
		return authority{}, err
	}
	block, _ := pem.Decode(a.key)
	if block == nil {
		return authority{}, errors.New("the key is not PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return authority{}, errors.New("the key is not PKCS #8") // the cause could quote it
	}
	key, ok := parsed.(crypto.Signer)
	if !ok {
		return authority{}, errors.New("the key cannot sign")
	}
	return sign(template, parent, key)
}

// sign makes a key and a certificate for it; without a parent it signs itself.
func sign(template, parent *x509.Certificate, by crypto.Signer) (authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return authority{}, fmt.Errorf("make key: %w", err)
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return authority{}, fmt.Errorf("make serial number: %w", err)
	}
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		return authority{}, fmt.Errorf("sign certificate: %w", err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return authority{}, fmt.Errorf("encode key: %w", err)
	}
	return authority{
		certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}),
	}, nil
}

// fits reports whether a leaf is signed by the authority, for exactly the names, and for a while yet.
func fits(leaf []byte, a authority, names []string, now time.Time) bool {
	c, err := parseCertificate(leaf)
	if err != nil {
		return false
	}
	parent, err := parseCertificate(a.certificate)
	return err == nil && c.CheckSignatureFrom(parent) == nil && slices.Equal(c.DNSNames, names) &&
		now.Before(c.NotAfter.Add(-leafRenew)) && bytes.Equal(c.RawIssuer, parent.RawSubject)
}

func parseCertificate(text []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("the certificate is not PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}
