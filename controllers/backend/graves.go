package backend

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/kube"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// graveTime is how long a deleted account is looked for: nobody can tell how many NATS servers of somebody else's sleep, nor
// for how long.
const graveTime = 30 * 24 * time.Hour

// Graves are the accounts that were deleted from the NATS of one CompassServer, in a Secret of its own: under the public key
// stand when, in milliseconds, and the name. Like the keys it goes with nobody else.
type Graves struct {
	kids   kube.Children
	secret *corev1.Secret
}

// GravesOf are those of the server.
func GravesOf(kids kube.Children, server *v1alpha1.CompassServer) (Graves, error) {
	names, err := naming.ServerChildrenOf(server.Name)
	kids.Drift = nil // they come and go, and that is nobody's edit
	return Graves{kids, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: server.Namespace, Name: names.Graves, Labels: kube.Labels(naming.LabelServer, server.Name, naming.ComponentSecret),
	}}}, err
}

// Dig notes, before the account is deleted, that it is to stay so.
func (g Graves) Dig(ctx context.Context, account fabric.Account, now time.Time) error {
	stone := account.Tombstone()
	_, err := kube.Keep(ctx, g.kids, nil, g.secret, func(have map[string][]byte) (map[string][]byte, error) {
		if len(have[stone.Account]) > 0 {
			return nil, nil
		}
		return map[string][]byte{stone.Account: fmt.Appendf(nil, "%d %s", now.UnixMilli(), stone.Name)}, nil
	})
	return err
}

// Fill ends a grave: the account is in use, or no longer looked for.
func (g Graves) Fill(ctx context.Context, account string) error {
	have, err := kube.Find(ctx, g.kids, g.secret)
	if err != nil || len(have[account]) == 0 {
		return err
	}
	_, err = kube.Change(ctx, g.kids, g.secret, map[string][]byte{account: nil})
	return err
}

// Stones are the graves, and which of them have been looked after for long enough.
func (g Graves) Stones(ctx context.Context, now time.Time) (all []fabric.Tombstone, old []string, err error) {
	have, err := kube.Find(ctx, g.kids, g.secret)
	for account, text := range have {
		since, name, _ := strings.Cut(string(text), " ")
		all = append(all, fabric.Tombstone{Account: account, Name: name})
		ms, _ := strconv.ParseInt(since, 10, 64) // what cannot be read is old
		if now.Sub(time.UnixMilli(ms)) > graveTime {
			old = append(old, account)
		}
	}
	return all, old, err
}

// Bury deletes again what a NATS server brought back that had slept while it was deleted.
func (p *Pool) Bury(ctx context.Context, at Place, servers int, stones []fabric.Tombstone) error {
	admin, err := p.accounts(ctx, at)
	if err != nil {
		return err
	}
	graves, err := admin.Bury(ctx, fabric.BurySpec{Signer: at.Keys.Signing[0], Owner: at.Owner(), Servers: servers}, stones)
	for _, grave := range graves {
		if grave.Risen {
			p.log.WarnContext(ctx, "Deleted a NATS account again, which a server had brought back", "server", at.Server.String(), "account", grave.Name)
		}
	}
	if errors.Is(err, fabric.ErrNoDelete) { // it is locked out, and its tenant said so
		return nil
	}
	return at.interpretNATS(err)
}
