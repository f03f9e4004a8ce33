// Command kubectl-compass is a plugin of kubectl: what people on call ask first, and what they do then.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, cluster)
	stop()
	os.Exit(code)
}

// plugin is what every command shares.
type plugin struct {
	connect func(kubeconfig, kubecontext, namespace string) (client.Client, string, error)

	kubeconfig, kubecontext, namespace string
	timeout                            time.Duration
}

// run is main with its world as arguments. The code is 0 for done, 1 for a failure, which is on log as one line that says
// what to do.
func run(
	ctx context.Context, args []string, out, log io.Writer, connect func(kubeconfig, kubecontext, namespace string) (client.Client, string, error),
) int {
	p := &plugin{connect: connect}
	root := &cobra.Command{
		Use: "kubectl-compass", Short: "See and mend what the Compass operator runs",
		Long: "See and mend what the Compass operator runs. Begin with status for the tree of servers, streams and tenants, and with\n" +
			"doctor for what is wrong and what to do. dlq, post and tail speak to the API as the tenant's admin.",
		Example: "  kubectl compass status -n compass\n  kubectl compass doctor\n  kubectl compass explain NoStream\n" +
			"  kubectl compass dlq list acme --server https://127.0.0.1:8443",
		SilenceUsage: true, SilenceErrors: true,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl compass"},
	}
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(log)
	flags := root.PersistentFlags()
	flags.StringVar(&p.kubeconfig, "kubeconfig", "", "path of a kubeconfig; empty: as kubectl finds it")
	flags.StringVar(&p.kubecontext, "context", "", "context of the kubeconfig; empty: the current one")
	flags.StringVarP(&p.namespace, "namespace", "n", "", "namespace; empty: that of the context")
	flags.DurationVar(&p.timeout, "timeout", 30*time.Second, "how long to wait for answers")
	root.AddCommand(
		p.statusCommand(), p.doctorCommand(), explainCommand(), p.tenantCommand(), p.deadLettersCommand(), p.postCommand(), p.tailCommand(),
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: cobra.NoArgs,
			Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version) },
		},
	)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(log, "kubectl compass:", err)
		return 1
	}
	return 0
}

// api is the cluster, and the namespace that is meant.
func (p *plugin) api() (client.Client, string, error) {
	c, namespace, err := p.connect(p.kubeconfig, p.kubecontext, p.namespace)
	if err != nil {
		return nil, "", fmt.Errorf("reach the cluster: %w", err)
	}
	return c, namespace, nil
}

// bounded is a context with the deadline of the flag.
func (p *plugin) bounded(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), p.timeout)
}

func cluster(kubeconfig, kubecontext, namespace string) (client.Client, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: kubecontext}
	overrides.Context.Namespace = namespace
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
	config, err := loaded.ClientConfig()
	if err != nil {
		return nil, "", err
	}
	if namespace, _, err = loaded.Namespace(); err != nil {
		return nil, "", err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, "", err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	return c, namespace, err
}
