// Command kubectl-compass-stream is what kubectl runs for `kubectl compass stream`: it saves the streams of a DeliveryStream
// and restores them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric/streambackup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr, cluster)
	stop()
	os.Exit(code)
}

// plugin is what both commands share.
type plugin struct {
	connect func(kubeconfig, kubecontext, namespace string) (client.Client, string, error)

	kubeconfig, kubecontext, namespace, nats string
	timeout                                  time.Duration
	replace                                  bool
}

// run is main with its world as arguments; the code is 0 for done, 1 for a failure, which is one line on log.
func run(
	ctx context.Context, args []string, out, log io.Writer, connect func(kubeconfig, kubecontext, namespace string) (client.Client, string, error),
) int {
	p := &plugin{connect: connect}
	root := &cobra.Command{
		Use: "kubectl-compass-stream", Short: "Save the streams of a DeliveryStream, and restore them",
		Long: "Save the queue and the dead letters of a DeliveryStream as files, and restore them with their sequences and consumer.\n" +
			"Postgres is the truth and fills a lost stream again; what only NATS has are attempts and dead letters that nobody could read.\n" +
			"It reads the keys of the CompassServer, so it needs to be allowed to read Secrets of its namespace.",
		Example: "  kubectl port-forward service/main-nats 4222 &\n" +
			"  kubectl compass stream backup agents ./agents-monday --nats nats://127.0.0.1:4222\n" +
			"  kubectl compass stream restore agents ./agents-monday --nats nats://127.0.0.1:4222",
		SilenceUsage: true, SilenceErrors: true,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl compass stream"},
	}
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(log)
	flags := root.PersistentFlags()
	flags.StringVar(&p.kubeconfig, "kubeconfig", "", "path of a kubeconfig; empty: as kubectl finds it")
	flags.StringVar(&p.kubecontext, "context", "", "context of the kubeconfig; empty: the current one")
	flags.StringVarP(&p.namespace, "namespace", "n", "", "namespace; empty: that of the context")
	flags.StringVar(&p.nats, "nats", "", "URL of NATS; empty: where pods reach it")
	flags.DurationVar(&p.timeout, "timeout", 10*time.Minute, "how long all of it may take")
	backup := &cobra.Command{
		Use: "backup STREAM DIR", Short: "Save into folders below DIR, which must hold none yet", Args: cobra.ExactArgs(2), RunE: p.backup,
	}
	restore := &cobra.Command{
		Use: "restore STREAM DIR", Short: "Put back what backup saved; what is there must be empty", Args: cobra.ExactArgs(2), RunE: p.restore,
	}
	restore.Flags().BoolVar(&p.replace, "replace", false, "give up what the streams hold now")
	root.AddCommand(backup, restore)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(log, "kubectl compass stream:", err)
		return 1
	}
	return 0
}

func (p *plugin) backup(cmd *cobra.Command, args []string) error {
	return p.with(cmd, args[0], func(ctx context.Context, o streambackup.Options) error {
		seen, err := streambackup.Save(ctx, args[1], o)
		return errors.Join(show(cmd.OutOrStdout(), "SAVED", seen), err)
	})
}

func (p *plugin) restore(cmd *cobra.Command, args []string) error {
	return p.with(cmd, args[0], func(ctx context.Context, o streambackup.Options) error {
		seen, err := streambackup.Restore(ctx, args[1], p.replace, o)
		if errors.Is(err, streambackup.ErrInUse) {
			err = fmt.Errorf("%w: let it run empty, or give that up with --replace", err)
		}
		return errors.Join(show(cmd.OutOrStdout(), "RESTORED", seen), err)
	})
}

func (p *plugin) with(cmd *cobra.Command, stream string, do func(context.Context, streambackup.Options) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), p.timeout)
	defer cancel()
	c, namespace, err := p.connect(p.kubeconfig, p.kubecontext, p.namespace)
	if err != nil {
		return fmt.Errorf("reach the cluster: %w", err)
	}
	o, err := options(ctx, c, client.ObjectKey{Namespace: namespace, Name: stream}, time.Now())
	if err != nil {
		return err
	}
	if p.nats != "" {
		o.URLs = []string{p.nats}
	}
	return do(ctx, o)
}

func show(out io.Writer, what string, all []streambackup.Seen) error {
	if len(all) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, what+"\tMESSAGES\tFIRST\tLAST\tCONSUMERS")
	for _, s := range all {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\n", s.Name, s.Messages, s.First, s.Last, s.Consumers)
	}
	return w.Flush()
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
