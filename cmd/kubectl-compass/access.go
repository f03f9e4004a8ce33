package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// speaker is what the commands share that speak to the API as a tenant's admin.
type speaker struct {
	*plugin
	server string
}

func (s *speaker) flags(flags *pflag.FlagSet) {
	flags.StringVar(&s.server, "server", "", "URL of the API; empty: the one in the tenant's Secret, which only pods reach.\n"+
		"From outside: kubectl port-forward service/SERVER-server 8443, and --server https://127.0.0.1:8443")
}

// access is the API as one tenant's admin.
type access struct {
	http *http.Client
	url  string
}

// as opens the API with what the operator published for a tenant.
func (s *speaker) as(ctx context.Context, tenant string) (access, error) {
	c, namespace, err := s.api()
	if err != nil {
		return access{}, err
	}
	t := &v1alpha1.CompassTenant{}
	switch err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: tenant}, t); {
	case apierrors.IsNotFound(err):
		return access{}, fmt.Errorf("there is no CompassTenant %q in namespace %s: see kubectl get ctenant -A, and say -n", tenant, namespace)
	case err != nil:
		return access{}, fmt.Errorf("read CompassTenant: %w", err)
	}
	if t.Status.Secrets.API == "" {
		return access{}, fmt.Errorf("tenant %s has no credentials yet: see kubectl compass status %s", tenant, tenant)
	}
	secret := &corev1.Secret{}
	if err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: t.Status.Secrets.API}, secret); err != nil {
		return access{}, fmt.Errorf("read the tenant's Secret: %w", err)
	}
	return accessAt(s.server, secret.Data)
}

// accessAt verifies the certificate for the name in the Secret, wherever a forwarded port is.
func accessAt(server string, data map[string][]byte) (access, error) {
	at, err := url.Parse(string(data["url"]))
	if err != nil || at.Host == "" {
		return access{}, errors.New("key url of the tenant's Secret is no URL")
	}
	name := at.Hostname()
	if server == "" {
		server = at.String()
	} else if u, err := url.Parse(server); err != nil || u.Scheme != "https" || u.Host == "" {
		return access{}, fmt.Errorf("--server %q is no URL such as https://127.0.0.1:8443", server)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(data["ca.crt"]) {
		roots = nil
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	}
	return access{http: &http.Client{Transport: bearer{string(data["token"]), transport}}, url: server}, nil
}

// bearer sends the token with every call.
type bearer struct {
	token string
	next  http.RoundTripper
}

// RoundTrip see http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(r)
}
