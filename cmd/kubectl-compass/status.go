package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

// world is what a namespace has of ours, and the tenants that other namespaces have at its servers.
type world struct {
	servers []v1alpha1.CompassServer
	streams []v1alpha1.DeliveryStream
	tenants []v1alpha1.CompassTenant
}

func (p *plugin) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status [TENANT]", Short: "Servers, their streams and whom each carries, with what is wrong", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := p.bounded(cmd)
			defer cancel()
			c, namespace, err := p.api()
			if err != nil {
				return err
			}
			w, err := look(ctx, c, namespace)
			if err != nil {
				return err
			}
			if len(args) == 0 {
				w.print(cmd.OutOrStdout())
				return nil
			}
			return w.printTenant(cmd.OutOrStdout(), args[0])
		},
	}
}

func look(ctx context.Context, c client.Client, namespace string) (world, error) {
	var servers v1alpha1.CompassServerList
	var streams v1alpha1.DeliveryStreamList
	var tenants v1alpha1.CompassTenantList
	if err := c.List(ctx, &servers, client.InNamespace(namespace)); err != nil {
		return world{}, fmt.Errorf("list CompassServers: %w", err)
	}
	if err := c.List(ctx, &streams, client.InNamespace(namespace)); err != nil {
		return world{}, fmt.Errorf("list DeliveryStreams: %w", err)
	}
	// Tenants may be anywhere; who may not look everywhere sees those of this namespace.
	if err := c.List(ctx, &tenants); err != nil {
		if err = c.List(ctx, &tenants, client.InNamespace(namespace)); err != nil {
			return world{}, fmt.Errorf("list CompassTenants: %w", err)
		}
	}
	w := world{servers: servers.Items, streams: streams.Items}
	for _, t := range tenants.Items {
		if at := t.Spec.ServerRef.Namespace; at == namespace || at == "" && t.Namespace == namespace {
			w.tenants = append(w.tenants, t)
		}
	}
	return w, nil
}

// print draws the tree: a server, its streams, whom each carries, and last whom none does.
func (w world) print(out io.Writer) {
	if len(w.servers) == 0 {
		fmt.Fprintln(out, "There is no CompassServer here.")
	}
	for i := range w.servers {
		s := &w.servers[i]
		line(out, 0, "server "+s.Name, s.Status.Conditions, fmt.Sprintf("schema %s, %d servers, %d tenants", schemaOf(s), s.Status.AvailableServers, s.Status.Tenants))
		for j := range w.streams {
			if d := &w.streams[j]; d.Spec.ServerRef.Name == s.Name {
				line(out, 1, "stream "+d.Name, d.Status.Conditions, backlogOf(d))
				w.printCarried(out, s, d.Name)
			}
		}
		w.printCarried(out, s, "")
	}
}

func (w world) printCarried(out io.Writer, s *v1alpha1.CompassServer, stream string) {
	for i := range w.tenants {
		if t := &w.tenants[i]; t.Spec.ServerRef.Name == s.Name && t.Status.Stream == stream {
			line(out, 2, "tenant "+t.SlugOrName(), t.Status.Conditions, usageOf(t))
		}
	}
}

func (w world) printTenant(out io.Writer, name string) error {
	i := slices.IndexFunc(w.tenants, func(t v1alpha1.CompassTenant) bool { return t.Name == name || t.SlugOrName() == name })
	if i < 0 {
		return fmt.Errorf("no CompassTenant has the name or slug %q here: see kubectl get ctenant", name)
	}
	t := &w.tenants[i]
	line(out, 0, "tenant "+t.SlugOrName(), t.Status.Conditions, usageOf(t))
	for _, c := range t.Status.Conditions {
		fmt.Fprintf(out, "  %-18s %-8s %s\n", c.Type, c.Status, strings.TrimSuffix(c.Reason+": "+c.Message, ": "))
	}
	fmt.Fprintf(out, "  id %s, account %s, stream %s\n", orNone(t.Status.TenantID), orNone(t.Status.Account), orNone(t.Status.Stream))
	return nil
}

// line is one object: whether it is Ready, and if not, why.
func line(out io.Writer, depth int, name string, conditions []metav1.Condition, facts string) {
	ready, words := "?", "not looked at yet"
	if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); c != nil {
		ready, words = map[metav1.ConditionStatus]string{metav1.ConditionTrue: "✓", metav1.ConditionFalse: "✗"}[c.Status], ""
		if c.Status != metav1.ConditionTrue {
			words = strings.TrimSuffix(c.Reason+": "+c.Message, ": ")
		}
		if ready == "" {
			ready = "?"
		}
	}
	fmt.Fprintf(out, "%s%s %s", strings.Repeat("  ", depth), ready, name)
	if facts != "" {
		fmt.Fprintf(out, "  (%s)", facts)
	}
	if words != "" {
		fmt.Fprintf(out, "  %s", words)
	}
	fmt.Fprintln(out)
}

func schemaOf(s *v1alpha1.CompassServer) string {
	if s.Status.Schema == nil {
		return "unknown"
	}
	return fmt.Sprintf("%d of %d", s.Status.Schema.Version, s.Status.Schema.Latest)
}

func backlogOf(d *v1alpha1.DeliveryStream) string {
	facts := []string{fmt.Sprintf("%d tenants", d.Status.Tenants)}
	if b := d.Status.Backlog; b != nil {
		facts = append(facts, fmt.Sprintf("%d owed", b.Owed), fmt.Sprintf("%d held", b.Held))
	}
	facts = append(facts, fmt.Sprintf("%d dead letters", d.Status.DeadLetters))
	if d.Status.Writer != nil {
		facts = append(facts, "written by "+d.Status.Writer.Pod)
	}
	return strings.Join(facts, ", ")
}

func usageOf(t *v1alpha1.CompassTenant) string {
	if t.Status.Usage == nil {
		return ""
	}
	return fmt.Sprintf("%d owed, %d dead letters", t.Status.Usage.Owed, t.Status.Usage.DeadLetters)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}
