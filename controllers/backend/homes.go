package backend

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/store/admin"
)

// A tenant with a database of its own publishes the way into it in a Secret beside its server's, which the server takes into
// its own list: so the two kinds meet, and everybody who opens the server's databases opens this one too.

// Homes reads what tenants of a server have published of databases of their own, by number, with what verifies them.
func Homes(ctx context.Context, c kube.Children, server client.ObjectKey) ([]config.Database, map[string][]byte, error) {
	list := &corev1.SecretList{}
	labels := client.MatchingLabels{
		naming.LabelServer: server.Name, naming.LabelComponent: naming.ComponentDatabase, naming.LabelManagedBy: naming.ManagedBy,
	}
	if err := c.Client.List(ctx, list, client.InNamespace(server.Namespace), labels); err != nil {
		return nil, nil, fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("list databases of tenants: %w", err))
	}
	var out []config.Database
	cas := map[string][]byte{}
	for i := range list.Items {
		data := list.Items[i].Data
		if len(data[KeyDatabases]) == 0 {
			continue // its tenant is making it
		}
		databases, err := ParseDatabases(data[KeyDatabases])
		if err != nil || len(databases) != 1 || list.Items[i].Name != naming.DatabaseSecret(server.Name, databases[0].ID) {
			continue // somebody wrote it; its tenant's next look puts it back, and nobody else's waits for that
		}
		out = append(out, databases[0])
		if len(data[KeyCA]) > 0 {
			cas[DatabaseCAFile(databases[0].ID)] = data[KeyCA]
		}
	}
	slices.SortFunc(out, func(a, b config.Database) int { return a.ID - b.ID })
	return out, cas, nil
}

// DatabaseCAFile is the name of the file that verifies the Postgres of a database, and of its key in <name>-databases.
func DatabaseCAFile(number int) string {
	if number == naming.DatabaseZero {
		return KeyCA
	}
	return fmt.Sprintf("ca-%d.crt", number)
}

// DatabaseCAs are those in the data of <name>-databases.
func DatabaseCAs(data map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for name, content := range data {
		if strings.HasPrefix(name, "ca") && strings.HasSuffix(name, ".crt") {
			out[name] = content
		}
	}
	return out
}

// Keys, in a Secret with the way into a database, of the passwords of its logins.
const (
	keyPasswordApp       = "app.password"
	keyPasswordSystem    = "system.password"
	keyPasswordProvision = "provision.password"
	passwordBytes        = 24
)

// MissingPasswords makes those that are not there yet.
func MissingPasswords(have map[string][]byte, rand io.Reader) (map[string][]byte, error) {
	missing := map[string][]byte{}
	for _, key := range []string{keyPasswordApp, keyPasswordSystem, keyPasswordProvision} {
		if len(have[key]) > 0 {
			continue
		}
		raw := make([]byte, passwordBytes)
		if _, err := io.ReadFull(rand, raw); err != nil {
			return nil, fmt.Errorf("make password: %w", err)
		}
		missing[key] = []byte(base64.RawURLEncoding.EncodeToString(raw))
	}
	return missing, nil
}

// Passwords are those that a Secret keeps.
func Passwords(kept map[string][]byte) admin.Passwords {
	return admin.Passwords{
		App: string(kept[keyPasswordApp]), System: string(kept[keyPasswordSystem]), Provision: string(kept[keyPasswordProvision]),
	}
}

// PasswordKeys are the part of a Secret's data that keeps them.
func PasswordKeys(kept map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for _, key := range []string{keyPasswordApp, keyPasswordSystem, keyPasswordProvision} {
		out[key] = kept[key]
	}
	return out
}

// Numbers tells on a Deployment which databases its pods are told of, such as ",0,7,".
func Numbers(databases []config.Database) string {
	out := ","
	for _, d := range databases {
		out += fmt.Sprint(d.ID) + ","
	}
	return out
}

// Knows reports whether those are Numbers with this one among them.
func Knows(numbers string, number int) bool {
	return strings.Contains(numbers, fmt.Sprintf(",%d,", number))
}

// Knows reports whether the server has taken in the database of that number.
func (at Place) Knows(number int) bool {
	return slices.ContainsFunc(at.Databases, func(d config.Database) bool { return d.ID == number })
}
