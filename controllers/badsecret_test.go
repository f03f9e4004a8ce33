package controllers_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// Holds REQ-213, REQ-224: an admin's Secret that holds the wrong keys, or a connection that no client could read, is named
// with the key and with what belongs there, and never quoted.
func TestUnreadableAdmin(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	op := newOperator(t, g, &calls{})
	const uri = "postgres://user:secret-word@127.0.0.1"
	cases := []struct {
		name string
		data map[string]string // of the Secret
		want metav1.Condition
		says []string
	}{
		{
			"url", map[string]string{"url": uri}, is("False", "WaitingForSecret"),
			[]string{"/url has neither key uri nor key host", "or host, port, username and password"},
		},
		{"port", map[string]string{"uri": uri + ":99999999/x"}, is("False", "InvalidSecret"), []string{"/port: key uri: ", "from 1 to 65535"}},
		{
			"part", map[string]string{"host": "127.0.0.1", "port": "0", "username": "user", "password": "secret-word"},
			is("False", "InvalidSecret"), []string{"/part: key port: ", "from 1 to 65535"},
		},
		{"mode", map[string]string{"uri": uri + ":1/x?sslmode=secret-word"}, is("False", "InvalidSecret"), []string{"/mode: ", "key uri", "correct sslmode"}},
		{
			"authority", map[string]string{"uri": uri + ":1/x", "ca.crt": "secret-word"}, is("False", "InvalidSecret"),
			[]string{"/authority: ", "ca.crt, if it is there"},
		},
	}
	for _, c := range cases {
		g.create(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: c.name}, StringData: c.data})
		server := g.newServer(t, c.name, func(s *v1alpha1.CompassServer) { s.Spec.Database.AdminSecretRef.Name = c.name })
		op.settle(t, server)
		g.says(t, server, v1alpha1.ConditionDatabaseReady, c.want, c.says...)
	}
}
