package controllers_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// Holds REQ-205: a number of Servers that the spec leaves open is the autoscaler's, from the moment that it is left open.
func TestAutoscaledServers(t *testing.T) {
	t.Parallel()
	th := newThread(t, v1alpha1.DeletionPolicyRetain)
	o, dep := &v1alpha1.CompassServer{}, &appsv1.Deployment{}
	replicas := func() int32 { t.Helper(); th.get(t, dep, "main-server"); return *dep.Spec.Replicas }
	th.update(t, o, "main", func() { o.Spec.Server.Replicas = nil })
	th.settle(t, th.server)
	if n := replicas(); n != 2 {
		t.Errorf("%d replicas; want the 2 that there were until somebody says otherwise", n)
	}
	scale := client.RawPatch(types.MergePatchType, []byte(`{"spec": {"replicas": 5}}`))
	if err := th.api.Patch(t.Context(), dep, scale, client.FieldOwner("autoscaler")); err != nil {
		t.Fatal(err)
	}
	th.settle(t, th.server)
	if n := replicas(); n != 5 {
		t.Errorf("%d replicas; want the autoscaler's 5", n)
	}
	th.update(t, o, "main", func() { o.Spec.Server.Replicas = new(int32(3)) })
	th.settle(t, th.server)
	if n := replicas(); n != 3 {
		t.Errorf("%d replicas; want the 3 of the spec", n)
	}
	th.mustBeReady(t, th.server)
}

// leaf is a certificate that signs itself.
func leaf(t *testing.T, host string, until time.Time) (certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: until.Add(-time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
}

// Holds REQ-205: a certificate of somebody else's is used and published to clients, and what is wrong with it is said.
func TestOwnCertificate(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "mine"}}
	server := g.newServer(t, "main", func(o *v1alpha1.CompassServer) { o.Spec.Server.TLSSecretRef = &v1alpha1.LocalReference{Name: "mine"} })
	acme := g.newTenant(t, "acme", "main")
	const available = v1alpha1.ConditionServerAvailable
	op.settle(t, server)
	g.says(t, server, available, is("False", "WaitingForSecret"), "mine does not exist")
	host := "main-server." + g.namespace + ".svc"
	put := func(host string, until time.Time) []byte {
		t.Helper()
		certificate, key := leaf(t, host, until)
		secret.Data = map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": certificate}
		if secret.ResourceVersion == "" {
			g.create(t, secret)
		} else if err := g.api.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
		op.settle(t, server, acme)
		return certificate
	}
	put("elsewhere.svc", time.Now().Add(time.Hour))
	g.says(t, server, available, is("False", "InvalidSecret"), "is not for "+host)
	put(host, time.Now().Add(-time.Minute))
	g.says(t, server, available, is("False", "InvalidSecret"), "is over: renew it")
	good := put(host, time.Now().Add(time.Hour))
	g.mustBeReady(t, server)
	if g.secret(t, "main-ca") != nil || g.secret(t, "main-tls") != nil {
		t.Error("an authority of our own was made")
	}
	if ca := g.secret(t, "acme-api")["ca.crt"]; !bytes.Equal(ca, good) {
		t.Error("the tenant was given another authority")
	}
	dep := &appsv1.Deployment{}
	g.get(t, dep, "main-server")
	for _, v := range dep.Spec.Template.Spec.Volumes {
		if v.Name == "tls" && v.Secret.SecretName != "mine" {
			t.Errorf("the Servers mount %s", v.Secret.SecretName)
		}
	}
}

// Holds REQ-203: the request path goes through the pooler, and what must not does not.
func TestPooler(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	server := g.newServer(t, "main", func(o *v1alpha1.CompassServer) {
		o.Spec.Database.Pooler = &v1alpha1.PoolerSpec{Host: "pooler.example", Port: 6432}
	})
	op.settle(t, server)
	g.says(t, server, v1alpha1.ConditionSchemaReady, is("True", "Applied")) // migrated past the pooler, which is not there
	text := string(g.secret(t, "main-databases")["databases.yaml"])
	if n := strings.Count(text, "@pooler.example:6432/"); n != 3 {
		t.Errorf("%d connection strings lead to the pooler, want 3 and the direct one not", n)
	}
}
