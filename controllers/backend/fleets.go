package backend

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/config"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// A tenant with a fleet of its own publishes what lets its Runners into NATS in a Secret beside its server's, which the server
// takes into the list that its Servers read.

// Keys of that Secret.
const (
	keyFleet        = "fleet"   // the tenant's id
	keyFleetAccount = "account" // public key of its NATS account
	keyFleetSeed    = "seed"    // of the account's signing key that is scoped to Runners
)

// FleetIssuer is that Secret's data.
func FleetIssuer(fleet string, keys fabric.AccountKeys) map[string][]byte {
	issuer := keys.Issuer(fabric.RoleRunner)
	return map[string][]byte{keyFleet: []byte(fleet), keyFleetAccount: []byte(issuer.Account), keyFleetSeed: issuer.Key.Text()}
}

// Fleets reads who lets Runners of which fleet in: the shared one, whose keys are given, and those that tenants published.
func Fleets(ctx context.Context, c kube.Children, server client.ObjectKey, shared fabric.AccountKeys) (map[string]config.FleetIssuer, error) {
	list := &corev1.SecretList{}
	labels := client.MatchingLabels{
		naming.LabelServer: server.Name, naming.LabelComponent: naming.ComponentFleet, naming.LabelManagedBy: naming.ManagedBy,
	}
	if err := c.Client.List(ctx, list, client.InNamespace(server.Namespace), labels); err != nil {
		return nil, fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("list fleets of tenants: %w", err))
	}
	own := FleetIssuer(naming.SharedFleet, shared)
	out := map[string]config.FleetIssuer{naming.SharedFleet: {Account: string(own[keyFleetAccount]), Seed: string(own[keyFleetSeed])}}
	for i := range list.Items {
		data := list.Items[i].Data
		fleet, account, seed := string(data[keyFleet]), string(data[keyFleetAccount]), string(data[keyFleetSeed])
		if fleet == naming.SharedFleet || naming.ValidFleet(fleet) != nil || account == "" || seed == "" {
			continue // somebody wrote it; its tenant's next look puts it back
		}
		out[fleet] = config.FleetIssuer{Account: account, Seed: seed}
	}
	return out, nil
}
