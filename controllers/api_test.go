package controllers_test

import (
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// The least that each kind takes.
const (
	leastServer = `
kind: CompassServer
spec: {database: {adminSecretRef: {name: pg}}}`
	leastTenant = `
kind: CompassTenant
spec: {serverRef: {name: main}}`
	leastStream = `
kind: DeliveryStream
spec: {serverRef: {name: main}, tenants: {all: true}}`
)

// a field of an object, written as in YAML, such as spec.nats.managed.syncInterval: 1s.
type field struct{ path, value string }

// object is the least of a kind with a field changed; the value is YAML, and empty takes the field away.
func object(t *testing.T, namespace, least string, change field) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(least), &u.Object); err != nil {
		t.Fatal(err)
	}
	u.SetAPIVersion(v1alpha1.GroupVersion.String())
	u.SetNamespace(namespace)
	u.SetName("x-" + strings.ToLower(rand.Text())[:12])
	set(t, u, change)
	return u
}

func set(t *testing.T, u *unstructured.Unstructured, change field) {
	t.Helper()
	if change.path == "" {
		return
	}
	path := strings.Split(change.path, ".")
	if change.value == "" {
		unstructured.RemoveNestedField(u.Object, path...)
		return
	}
	var v any
	if err := yaml.Unmarshal([]byte(change.value), &v); err != nil {
		t.Fatal(err)
	}
	if err := unstructured.SetNestedField(u.Object, v, path...); err != nil {
		t.Fatal(err)
	}
}

func apiNamespace(t *testing.T, c client.Client) string {
	t.Helper()
	name := "t-" + strings.ToLower(rand.Text())[:10]
	if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		t.Fatal(err)
	}
	return name
}

// Holds REQ-215 and operator lesson 16: what the API server can judge it judges, strictly, and says which field and what
// instead. Each rule has an object that it takes and one that it refuses.
func TestValidation(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	namespace := apiNamespace(t, c)
	const theirs = "{urls: [nats://h:4222], operatorSecretRef: {name: o}, systemSecretRef: {name: s}}"
	cases := []struct {
		least          string
		path           string
		taken, refused string
		says           string // a part of the refusal
	}{
		{leastServer, "metadata.name", strings.Repeat("a", 40), strings.Repeat("a", 41), "at most 40 characters"},
		{leastServer, "metadata.name", "b-c", "b.c", "no dots"},
		{leastServer, "spec.database.adminSecretRef.name", "x", `""`, "adminSecretRef.name"},
		{leastServer, "spec.database.name", "compass_2", "Compass", "spec.database.name"},
		{leastServer, "spec.database.name", "pgx", "pg_x", "reserved by Postgres"},
		{leastServer, "spec.database.name", "mine", "postgres", "reserved by Postgres"},
		{leastServer, "spec.database.maxConnections", "4", "3", "maxConnections"},
		{leastServer, "spec.nats", "{mode: Managed}", "{mode: Imaginary}", "spec.nats.mode"},
		{leastServer, "spec.nats", "{mode: External, external: " + theirs + "}", "{mode: External}", "goes with mode: External"},
		{leastServer, "spec.nats", "{mode: Managed}", "{external: " + theirs + "}", "goes with mode: External"},
		{leastServer, "spec.nats", "{mode: External, external: " + theirs + "}", "{mode: External, external: " + strings.Replace(theirs, "nats://", "nats://me:word@", 1) + "}", "without a user"},
		{leastServer, "spec.nats", "{managed: {syncInterval: always}}", "{managed: {syncInterval: never}}", "syncInterval"},
		{leastServer, "spec.nats", "{managed: {syncInterval: 10ms}}", "{managed: {syncInterval: 5m}}", "a duration from 10ms to 2m"},
		{leastServer, "spec.nats", "{managed: {storage: {size: 1Gi}}}", `{managed: {storage: {size: "1"}}}`, "storage.size: at least 1Gi; a stream with the default"},
		{leastServer, "spec.nats", "{managed: {replicas: 3}}", "{managed: {replicas: 2}}", "spec.nats.managed.replicas"},
		{leastServer, "spec.server", "{replicas: 0}", "{replicas: -1}", "replicas"},
		{leastServer, "spec.server", "{service: {type: NodePort}}", "{service: {type: ExternalName}}", "service.type"},
		{leastServer, "spec.sessions", "{lease: 5s}", "{lease: 4s}", "from 5s to 10m"},
		{leastServer, "spec.sessions", "{maxTurn: 1m}", "{maxTurn: 59s}", "0s, or at least 1m"},
		{leastServer, "spec.database.pooler", "{host: h}", "{host: h, port: 0}", "pooler.port"},
		{leastServer, "spec.server", "{tlsSecretRef: {name: x}}", "{tlsSecretRef: {name: ''}}", "tlsSecretRef.name"},
		{leastServer, "spec.telemetry", "{logLevel: debug}", "{logLevel: loud}", "logLevel"},
		{leastServer, "spec.image", "{repository: r.example/x, tag: v1.2_a-3}", "{tag: 'a b'}", "spec.image.tag"},
		{leastServer, "spec.image", "{repository: 'r.example:5000/a/b'}", "{repository: 'a b'}", "spec.image.repository"},
		{leastServer, "spec.image", "{pullPolicy: Never}", "{pullPolicy: Sometimes}", "pullPolicy"},
		{leastServer, "spec.deletionPolicy", "Delete", "Orphan", "deletionPolicy"},
		{leastServer, "spec.drift", "Report", "Ignore", "spec.drift"},
		{leastServer, "spec.allowedTenants", "{namespaces: {from: All}}", "{namespaces: {from: Some}}", "namespaces.from"},
		{leastServer, "spec.allowedTenants", "{namespaces: {from: Selector, selector: {}}}", "{namespaces: {from: Selector}}", "a selector goes with from: Selector"},
		{leastServer, "spec.allowedTenants", "{namespaces: {from: Same}}", "{namespaces: {from: Same, selector: {}}}", "a selector goes with from: Selector"},
		{leastServer, "spec.server", "{pod: {labels: {a: b}}}", "{pod: {env: [{name: A}, {name: A}]}}", "Duplicate value"},

		{leastTenant, "spec.slug", "acme-2", "Acme", "spec.slug"},
		{leastTenant, "spec.slug", strings.Repeat("a", 48), strings.Repeat("a", 49), "spec.slug"},
		{leastTenant, "spec.slug", "system2", "system", "a reserved word"},
		{leastTenant, "metadata.name", "alle", "all", "a reserved word"},
		{leastTenant, "spec.displayName", "Acme", strings.Repeat("a", 201), "displayName"},
		{leastTenant, "spec.displayName", "Ácme & Söhne", `"a\nb"`, "displayName"},
		{leastTenant, "spec.displayName", "'a''b; --'", `"a\0b"`, "displayName"},
		{leastTenant, "spec.limits", "{messages: {maxBytes: 1}}", "{messages: {maxBytes: 1m}}", "must be a byte at least"},
		{leastTenant, "spec.credentials", "{rotationPeriod: 25h}", "{rotationPeriod: 2h}", "it is 24h where it is not set"},
		{leastTenant, "spec.limits", "{messages: {perSecond: 1}}", "{messages: {perSecond: 0}}", "perSecond"},
		{leastTenant, "spec.limits", "{messages: {maxBytes: 1Ki}}", `{messages: {maxBytes: "0"}}`, "must be a byte at least"},
		{leastTenant, "spec.limits", "{messages: {maxBytes: 1Mi}}", "{messages: {maxBytes: 1048577}}", "at most 1Mi, because a Server takes no larger request"},
		{leastTenant, "spec.limits", "{database: {statementTimeout: 100ms}}", "{database: {statementTimeout: 1d}}", "statementTimeout"},
		{leastTenant, "spec.limits", "{database: {statementTimeout: 5m}}", "{database: {statementTimeout: 6m}}", "a duration from 100ms to 5m"},
		{leastTenant, "spec.limits", "{nats: {connections: 0}}", "{nats: {connections: -1}}", "connections"},
		{leastTenant, "spec.credentials", "{rotationPeriod: 0s}", "{rotationPeriod: 59m}", "0s, or at least 1h"},
		{leastTenant, "spec.credentials", "{rotationPeriod: 48h, overlap: 47h}", "{rotationPeriod: 48h, overlap: 48h}", "shorter than rotationPeriod"},
		{leastTenant, "spec.sqlAccess", "{enabled: true, connections: 1}", "{enabled: true, connections: 0}", "connections"},
		{leastTenant, "spec.nats", "{eventTap: true}", "{eventTap: 1}", "eventTap"},
		{leastTenant, "spec.isolation", "{mode: Shared}", "{mode: Apart}", "spec.isolation.mode"},
		{leastTenant, "spec.isolation", "{mode: Dedicated, dedicated: {adminSecretRef: {name: pg}, database: acme}}", "{mode: Dedicated}", "only with it"},
		{leastTenant, "spec.isolation", "{}", "{dedicated: {adminSecretRef: {name: pg}, database: acme}}", "only with it"},
		{
			leastTenant, "spec.isolation", "{mode: Dedicated, dedicated: {adminSecretRef: {name: pg}, database: acme}}",
			"{mode: Dedicated, dedicated: {adminSecretRef: {name: pg}, database: postgres}}", "keeps for itself",
		},
		{leastTenant, "spec.adoptionPolicy", "Force", "Always", "adoptionPolicy"},
		{leastTenant, "spec.drift", "Report", "Ignore", "spec.drift"},
		{leastTenant, "spec.serverRef", "{name: main, namespace: other}", "{name: \"\"}", "serverRef.name"},

		{leastStream, "spec.tenants", "{names: [a, b]}", "{names: [a], all: true}", "set one of all: true, names and selector"},
		{leastStream, "spec.tenants", "{all: true}", "{all: false}", "set one of all: true, names and selector"},
		{leastStream, "spec.tenants", "{selector: {matchLabels: {tier: gold}}}", "{selector: {matchLabels: {tier: gold}}, names: [a]}", "set one of"},
		{leastStream, "spec.tenants", "{names: [a-1]}", `{names: [""]}`, "spec.tenants.names[0]"},
		{leastStream, "spec.tenants", "{names: [1a]}", "{names: [Acme]}", "spec.tenants.names[0]"},
		{leastStream, "spec.stream", "{maxBytes: 1Pi}", "{maxBytes: 2Pi}", "at most 1Pi"},
		{leastStream, "spec.tenants", "{names: [b, a]}", "{names: [a, a]}", "Duplicate value"},
		{leastStream, "spec.stream", "{maxAge: 1m}", "{maxAge: 59s}", "at least 1m"},
		{leastStream, "spec.stream", "{maxBytes: 1Mi}", `{maxBytes: "0"}`, "must be a byte at least"},
		{leastStream, "spec.stream", "{duplicateWindow: 100ms}", "{duplicateWindow: 11m}", "from 100ms to 10m"},
		{leastStream, "spec.stream", "{maxAge: 5m, duplicateWindow: 5m}", "{maxAge: 5m, duplicateWindow: 6m}", "not longer than spec.stream.maxAge"},
		{leastStream, "spec.stream", "{perTenant: {maxMessages: 1}}", "{perTenant: {maxMessages: 0}}", "maxMessages"},
		{leastStream, "spec.delivery", "{maxDeliver: 1}", "{maxDeliver: 0}", "maxDeliver"},
		{leastStream, "spec.delivery", "{ackWait: 1s}", "{ackWait: 999ms}", "from 1s to 10m"},
		{leastStream, "spec.delivery", "{backoff: [1s, 1h]}", "{backoff: [1s, 10ms]}", "each from 100ms to 1h"},
		{leastStream, "spec.delivery", "{backoff: [1s]}", "{backoff: []}", "backoff"},
		{leastStream, "spec.delivery", "{maxAckPending: 1}", "{maxAckPending: 0}", "maxAckPending"},
		{leastStream, "spec.deadLetter", "{maxAge: 1h}", "{maxAge: 59m}", "at least 1h"},
		{leastStream, "spec.recovery", "{floorTick: 1s}", "{floorTick: 2h}", "from 1s to 1h"},
		{leastStream, "spec.stream", "{replicas: 3}", "{replicas: 2}", "replicas"},
		{leastStream, "spec.adoptionPolicy", "IfUnowned", "Always", "adoptionPolicy"},
		{leastStream, "spec.drift", "Report", "Ignore", "spec.drift"},
		{leastStream, "spec.worker", "{pod: {nodeSelector: {a: b}}}", "{pod: {nodeSelector: {a: 1}}}", "nodeSelector"},
		{leastStream, "spec.worker", "{lease: 3s}", "{lease: 2s}", "from 3s to 1m"},
	}
	for _, k := range cases {
		t.Run(k.path+"="+k.refused, func(t *testing.T) {
			t.Parallel()
			if err := c.Create(t.Context(), object(t, namespace, k.least, field{k.path, k.taken})); err != nil {
				t.Errorf("%s %s was refused: %v", k.path, k.taken, err)
			}
			err := c.Create(t.Context(), object(t, namespace, k.least, field{k.path, k.refused}))
			if err == nil || !strings.Contains(err.Error(), k.says) || !apierrors.IsInvalid(err) {
				t.Errorf("%s %s: %v; want a refusal that says %q", k.path, k.refused, err, k.says)
			}
		})
	}
}

// Holds REQ-209, REQ-215: what is not there is refused, not ignored; above all there is no replica field.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	c := client.WithFieldValidation(newClient(t), metav1.FieldValidationStrict)
	namespace := apiNamespace(t, c)
	for least, unknown := range map[string]field{
		leastServer: {"spec.adoptionPolicy", "Force"}, leastTenant: {"spec.limit", "1"}, leastStream: {"spec.replicas", "2"},
	} {
		err := c.Create(t.Context(), object(t, namespace, least, unknown))
		if err == nil || !strings.Contains(err.Error(), "unknown field") {
			t.Errorf("%s: %v; want a refusal", unknown.path, err)
		}
	}
}

// Holds REQ-215 and operator lesson 21: what cannot change says so, and how to get there.
func TestImmutable(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	namespace := apiNamespace(t, c)
	for _, k := range []struct {
		least   string
		from    field
		to      field
		allowed field
		says    string
	}{
		{leastServer, field{"spec.database.name", "one"}, field{"spec.database.name", "two"}, field{"spec.database.maxConnections", "40"}, "spec.database.name is immutable"},
		{
			leastServer, field{"spec.nats", "{managed: {storage: {size: 1Gi}}}"}, field{"spec.nats.managed.storage.size", "2Gi"},
			field{"spec.nats.managed.syncInterval", "1s"}, "a StatefulSet cannot change its volumes",
		},
		{
			leastServer, field{"spec.nats", "{managed: {replicas: 3}}"}, field{"spec.nats.managed.replicas", "1"},
			field{"spec.nats.managed.syncInterval", "1s"}, "3 cannot become 1",
		},
		{leastTenant, field{"spec.slug", "one"}, field{"spec.slug", "two"}, field{"spec.displayName", "One"}, "spec.slug is immutable"},
		{leastTenant, field{"spec.slug", "one"}, field{"spec.slug", ""}, field{"spec.displayName", "One"}, "spec.slug is immutable"},
		{leastTenant, field{}, field{"spec.serverRef.name", "other"}, field{"spec.displayName", "One"}, "spec.serverRef is immutable"},
		{
			leastTenant, field{"spec.isolation", "{mode: Dedicated, dedicated: {adminSecretRef: {name: pg}, database: one}}"},
			field{"spec.isolation.dedicated.database", "two"}, field{"spec.isolation.dedicated.adminSecretRef.name", "other"},
			"spec.isolation.dedicated.database is immutable",
		},
		{leastStream, field{}, field{"spec.serverRef.name", "other"}, field{"spec.suspend", "true"}, "spec.serverRef is immutable"},
	} {
		t.Run(k.to.path+"="+k.to.value, func(t *testing.T) {
			t.Parallel()
			u := object(t, namespace, k.least, k.from)
			if err := c.Create(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			set(t, u, k.allowed)
			if err := c.Update(t.Context(), u); err != nil {
				t.Errorf("%s: %v", k.allowed.path, err)
			}
			set(t, u, k.to)
			if err := c.Update(t.Context(), u); err == nil || !strings.Contains(err.Error(), k.says) {
				t.Errorf("%v; want a refusal that says %q", err, k.says)
			}
		})
	}
}

// Holds REQ-215: the API server refuses every word that naming reserves.
func TestReservedSlugs(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	namespace := apiNamespace(t, c)
	for _, word := range naming.ReservedSlugs() {
		if err := c.Create(t.Context(), object(t, namespace, leastTenant, field{"spec.slug", word})); err == nil {
			t.Errorf("the slug %q was taken", word)
		}
		u := object(t, namespace, leastTenant, field{})
		u.SetName(word)
		if err := c.Create(t.Context(), u); err == nil {
			t.Errorf("the name %q was taken as a slug", word)
		}
	}
}

// Holds REQ-201: short names, the category and the columns that people look at.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	for kind, want := range map[string]string{"compassservers": "cserver", "compasstenants": "ctenant", "deliverystreams": "dstream"} {
		crd := &unstructured.Unstructured{}
		crd.SetAPIVersion("apiextensions.k8s.io/v1")
		crd.SetKind("CustomResourceDefinition")
		if err := c.Get(t.Context(), client.ObjectKey{Name: kind + ".compass.rigel.build"}, crd); err != nil {
			t.Fatal(err)
		}
		short, _, _ := unstructured.NestedStringSlice(crd.Object, "spec", "names", "shortNames")
		categories, _, _ := unstructured.NestedStringSlice(crd.Object, "spec", "names", "categories")
		scope, _, _ := unstructured.NestedString(crd.Object, "spec", "scope")
		if fmt.Sprintln(short, categories, scope) != fmt.Sprintf("[%s] [compass] Namespaced\n", want) {
			t.Errorf("%s: %v %v %s", kind, short, categories, scope)
		}
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		version, _ := versions[0].(map[string]any)
		if columns, _, _ := unstructured.NestedSlice(version, "additionalPrinterColumns"); len(columns) < 6 {
			t.Errorf("%s has %d columns", kind, len(columns))
		}
	}
}
