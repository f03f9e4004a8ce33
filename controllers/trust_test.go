package controllers_test

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// Holds REQ-206, REQ-210: whoever keeps a copy of what verifies a server has the new one as soon as the server has, long
// before the resync: nobody is Ready with a certificate that verifies nothing.
func TestAuthorityIsFollowed(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	g.run(t)
	server, acme, stream := g.newServer(t, "main"), g.newTenant(t, "acme", "main"), g.newStream(t, "main", "main")
	eventually(t, "all three are Ready", func() bool {
		g.kubelet(t)
		return g.ready(t, server) && g.ready(t, acme) && g.ready(t, stream)
	})
	old := g.secret(t, "main-ca")["tls.crt"]
	if got := g.secret(t, "acme-api")["ca.crt"]; len(old) == 0 || !bytes.Equal(got, old) {
		t.Fatalf("acme-api has ca.crt %q, the server %q", got, old)
	}

	g.delete(t, &corev1.Secret{}, "main-ca")
	eventually(t, "the tenant has the new certificate of its server", func() bool {
		ca := g.secret(t, "main-ca")["tls.crt"]
		return len(ca) > 0 && !bytes.Equal(ca, old) && bytes.Equal(g.secret(t, "acme-api")["ca.crt"], ca)
	})

	// What verifies Postgres goes the same way, from the admin's Secret into the worker's.
	admin := &corev1.Secret{}
	g.update(t, admin, "postgres-admin", func() { admin.Data["ca.crt"] = old })
	o := &v1alpha1.CompassServer{}
	g.update(t, o, "main", func() { o.Annotations = map[string]string{"look": "now"} })
	eventually(t, "the worker has what verifies Postgres", func() bool {
		return bytes.Equal(g.secret(t, "main-compass-delivery")["ca.crt"], old)
	})
}
