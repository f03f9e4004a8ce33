package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
)

func explainCommand() *cobra.Command {
	return &cobra.Command{
		Use: "explain CONDITION|REASON", Short: "What a condition or a reason means", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			texts := v1alpha1.Explain()
			names := slices.Sorted(maps.Keys(texts))
			i := slices.IndexFunc(names, func(n string) bool { return strings.EqualFold(n, args[0]) })
			if i < 0 {
				return fmt.Errorf("no condition or reason is called %q; there are: %s", args[0], strings.Join(names, ", "))
			}
			fmt.Fprintln(cmd.OutOrStdout(), names[i]+texts[names[i]])
			return nil
		},
	}
}

func (p *plugin) tenantCommand() *cobra.Command {
	tenant := &cobra.Command{Use: "tenant", Short: "Work on one tenant"}
	tenant.AddCommand(&cobra.Command{
		Use: "rotate NAME", Short: "Replace the tenant's credentials now; the old ones are good for spec.credentials.overlap", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := p.bounded(cmd)
			defer cancel()
			c, namespace, err := p.api()
			if err != nil {
				return err
			}
			t := &v1alpha1.CompassTenant{}
			if err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: args[0]}, t); err != nil {
				return fmt.Errorf("read CompassTenant: %w", err)
			}
			before := t.DeepCopy()
			if t.Annotations == nil {
				t.Annotations = map[string]string{}
			}
			// Any value that was not there before; the resource version is one.
			t.Annotations[v1alpha1.AnnotationRotate] = t.ResourceVersion
			if err := c.Patch(ctx, t, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
				return fmt.Errorf("ask for a rotation: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Asked. When status.rotation.asked is %q, Secret %s-api and what else is published are new.\n", t.Annotations[v1alpha1.AnnotationRotate], t.Name)
			return nil
		},
	})
	return tenant
}
