package backend

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/kube"
)

// Keys of the Secrets that somebody else's NATS is handed over in.
const keyOperatorSeed = "operator.seed"

// External is what opens somebody else's NATS. It shows itself to nobody.
type External struct {
	URLs   []string
	Signer fabric.Seed
	System fabric.Credentials
	CA     []byte
	mark   string // of the credentials
}

// String shows where.
func (x External) String() string { return strings.Join(x.URLs, ", ") }

// GoString is String.
func (x External) GoString() string { return x.String() }

// ReadExternal reads the Secrets that spec.nats.external names. What is missing or cannot work is waited for and named.
func ReadExternal(ctx context.Context, c kube.Children, namespace string, spec *v1alpha1.ExternalNATSSpec) (External, error) {
	key := func(ref v1alpha1.LocalReference) client.ObjectKey {
		return client.ObjectKey{Namespace: namespace, Name: ref.Name}
	}
	x := External{URLs: spec.URLs}
	operator, err := kube.Read(ctx, c, key(spec.OperatorSecretRef), keyOperatorSeed)
	if err != nil {
		return x, err
	}
	if x.Signer, err = fabric.ParseOperatorSigner(operator[keyOperatorSeed]); err != nil {
		return x, fault.Waiting(v1alpha1.ReasonInvalidSecret, fmt.Sprintf("key %s of Secret %s: %v", keyOperatorSeed, key(spec.OperatorSecretRef), err))
	}
	system, err := kube.Read(ctx, c, key(spec.SystemSecretRef), KeyCreds)
	if err != nil {
		return x, err
	}
	if x.System, err = fabric.ParseCreds(system[KeyCreds], ""); err != nil {
		return x, fault.Waiting(v1alpha1.ReasonInvalidSecret, fmt.Sprintf("key %s of Secret %s: %v", KeyCreds, key(spec.SystemSecretRef), err))
	}
	x.mark = digest(system[KeyCreds])
	if spec.CASecretRef != nil {
		ca, err := kube.Read(ctx, c, key(*spec.CASecretRef), KeyCA)
		if err != nil {
			return x, err
		}
		x.CA = ca[KeyCA]
	}
	return x, nil
}

// Probe sees that somebody else's NATS is fit: every server supported, with JetStream, reached by a URL, and trusting the
// key that we were given, for which nothing but a connection is proof (ruling O3). It writes, and so is done once for each
// set of what opens it, and again after a restart of the operator.
func (p *Pool) Probe(ctx context.Context, at Place) error {
	mark := digest([]byte(strings.Join(at.NATS, " ")), at.Keys.Signing[0].Text(), at.NATSCA)
	h := p.of(at.Server)
	h.mu.Lock()
	done := h.probed == mark
	h.mu.Unlock()
	if done {
		return nil
	}
	admin, err := p.accounts(ctx, at)
	if err != nil {
		return err
	}
	var urls []string
	for _, u := range at.NATS {
		urls = append(urls, p.dial(u)...)
	}
	seen, err := admin.Probe(ctx, fabric.ProbeSpec{Keys: at.Keys.Probe, Signer: at.Keys.Signing[0], Owner: at.Owner(), URLs: urls})
	if err != nil {
		return at.interpretNATS(err)
	}
	if !seen.Ready() {
		return fault.Waiting(v1alpha1.ReasonFabricUnfit, unfit(seen))
	}
	h.mu.Lock()
	h.probed = mark
	h.mu.Unlock()
	return nil
}

// unfit says what is missing and who can give it.
func unfit(seen fabric.ProbeSeen) string {
	var lacks []string
	add := func(names []string, words string) {
		if len(names) > 0 {
			lacks = append(lacks, strings.Join(names, ", ")+" "+words)
		}
	}
	add(seen.Outdated, "are older than "+fabric.MinServerVersion+": upgrade them")
	add(seen.NoJS, "run without JetStream: enable it")
	add(seen.Untrusted, "refuse accounts signed with the key in spec.nats.external.operatorSecretRef: give a signing key of their operator")
	add(seen.Unreached, "are reached by none of spec.nats.external.urls: add theirs")
	if len(lacks) == 0 {
		return "no NATS server answered"
	}
	return "NATS servers " + strings.Join(lacks, "; ")
}
