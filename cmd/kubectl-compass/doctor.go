package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

func (p *plugin) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "What is wrong, what it means and what to do", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
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
			if n := w.diagnose(cmd.OutOrStdout()); n > 0 {
				return fmt.Errorf("%d findings", n)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "Everything is Ready.")
			return nil
		},
	}
}

// diagnose prints every condition that is not True, causes before what follows from them, and returns how many.
func (w world) diagnose(out io.Writer) (n int) {
	texts := v1alpha1.Explain()
	tell := func(kind, name string, o metav1.Object, status *v1alpha1.Status) {
		if status.ObservedGeneration < o.GetGeneration() && meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady) == nil {
			n++
			fmt.Fprintf(out, "%s %s: nobody has looked at it: does the operator run, and in this namespace?\n", kind, name)
		}
		for _, c := range status.Conditions {
			if c.Status == metav1.ConditionTrue || c.Type == v1alpha1.ConditionReady || c.Reason == v1alpha1.ReasonWaitingForDependency {
				continue
			}
			n++
			fmt.Fprintf(out, "%s %s: %s is %s: %s\n", kind, name, c.Type, c.Status, strings.TrimSuffix(c.Reason+": "+c.Message, ": "))
			if text := texts[c.Reason]; text != "" {
				fmt.Fprintf(out, "    %s%s\n", c.Reason, text)
			}
		}
	}
	for i := range w.servers {
		tell("CompassServer", w.servers[i].Name, &w.servers[i], w.servers[i].Common())
	}
	for i := range w.streams {
		tell("DeliveryStream", w.streams[i].Name, &w.streams[i], w.streams[i].Common())
	}
	for i := range w.tenants {
		tell("CompassTenant", w.tenants[i].Name, &w.tenants[i], w.tenants[i].Common())
	}
	return n
}
