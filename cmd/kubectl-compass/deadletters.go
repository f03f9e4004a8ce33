package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
)

// letters are the flags of the commands about dead letters.
type letters struct {
	speaker
	message, recipient, channel string
	dryRun, yes                 bool
}

func (p *plugin) deadLettersCommand() *cobra.Command {
	l := &letters{speaker: speaker{plugin: p}}
	root := &cobra.Command{Use: "dlq", Short: "Look at messages that were set aside, deliver them again, or give them up"}
	l.flags(root.PersistentFlags())
	list := &cobra.Command{Use: "list TENANT", Short: "All dead letters of a tenant", Args: exactly(1, "TENANT"), RunE: l.list}
	show := &cobra.Command{Use: "show TENANT MESSAGE", Short: "The dead letters of one message", Args: exactly(2, "TENANT MESSAGE"), RunE: l.show}
	replay := &cobra.Command{Use: "replay TENANT", Short: "Make them owed again, in the order of their positions", Args: exactly(1, "TENANT"), RunE: l.replay}
	purge := &cobra.Command{Use: "purge TENANT", Short: "Give them up for their recipients, for good", Args: exactly(1, "TENANT"), RunE: l.purge}
	for _, c := range []*cobra.Command{replay, purge} {
		c.Flags().StringVar(&l.message, "message", "", "only this message")
		c.Flags().StringVar(&l.recipient, "recipient", "", "only of this account")
		c.Flags().StringVar(&l.channel, "channel", "", "only of this channel")
		c.Flags().BoolVar(&l.dryRun, "dry-run", false, "count only")
	}
	purge.Flags().BoolVar(&l.yes, "yes", false, "do not ask what --dry-run would say first")
	root.AddCommand(list, show, replay, purge)
	return root
}

// admin is the part of the API for a tenant's admin.
func (l *letters) admin(ctx context.Context, tenant string) (compassv1connect.AdminServiceClient, error) {
	at, err := l.as(ctx, tenant)
	return compassv1connect.NewAdminServiceClient(at.http, at.url), err
}

func (l *letters) filter() *compassv1.DeadLetterFilter {
	return &compassv1.DeadLetterFilter{MessageId: l.message, RecipientId: l.recipient, ChannelId: l.channel}
}

func (l *letters) list(cmd *cobra.Command, args []string) error {
	return l.print(cmd, args[0], func(*compassv1.DeadLetter) bool { return true })
}

func (l *letters) show(cmd *cobra.Command, args []string) error {
	return l.print(cmd, args[0], func(d *compassv1.DeadLetter) bool { return d.GetMessageId() == args[1] })
}

func (l *letters) print(cmd *cobra.Command, tenant string, wanted func(*compassv1.DeadLetter) bool) error {
	ctx, cancel := l.bounded(cmd)
	defer cancel()
	api, err := l.admin(ctx, tenant)
	if err != nil {
		return err
	}
	var all []*compassv1.DeadLetter
	for token := ""; ; {
		page, err := api.ListDeadLetters(ctx, connect.NewRequest(&compassv1.ListDeadLettersRequest{PageToken: token}))
		if err != nil {
			return fmt.Errorf("list dead letters: %w", err)
		}
		for _, d := range page.Msg.GetDeadLetters() {
			if wanted(d) {
				all = append(all, d)
			}
		}
		if token = page.Msg.GetNextPageToken(); token == "" {
			break
		}
	}
	return table(cmd.OutOrStdout(), all)
}

func table(out io.Writer, letters []*compassv1.DeadLetter) error {
	if len(letters) == 0 {
		_, err := fmt.Fprintln(out, "There are none.")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MESSAGE\tRECIPIENT\tCHANNEL\tATTEMPTS\tLAST\tREPLAYED\tREASON")
	for _, d := range letters {
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%d\t%s\n", d.GetMessageId(), d.GetRecipientId(), d.GetChannelId(), d.GetAttempts(),
			time.UnixMilli(d.GetLastUnixMs()).UTC().Format(time.RFC3339), d.GetReplayed(), d.GetReason())
	}
	return w.Flush()
}

func (l *letters) replay(cmd *cobra.Command, args []string) error {
	ctx, cancel := l.bounded(cmd)
	defer cancel()
	api, err := l.admin(ctx, args[0])
	if err != nil {
		return err
	}
	answer, err := api.ReplayDeadLetters(ctx, connect.NewRequest(&compassv1.ReplayDeadLettersRequest{Filter: l.filter(), DryRun: l.dryRun}))
	if err != nil {
		return fmt.Errorf("replay dead letters: %w", err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s %d.\n", said(l.dryRun, "Owed again:", "Would be owed again:"), answer.Msg.GetCount())
	return nil
}

func (l *letters) purge(cmd *cobra.Command, args []string) error {
	if !l.dryRun && !l.yes {
		return errors.New("a purge cannot be undone: look with --dry-run how many it is, then say --yes")
	}
	ctx, cancel := l.bounded(cmd)
	defer cancel()
	api, err := l.admin(ctx, args[0])
	if err != nil {
		return err
	}
	answer, err := api.PurgeDeadLetters(ctx, connect.NewRequest(&compassv1.PurgeDeadLettersRequest{Filter: l.filter(), DryRun: l.dryRun}))
	if err != nil {
		return fmt.Errorf("purge dead letters: %w", err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s %d.\n", said(l.dryRun, "Given up:", "Would be given up:"), answer.Msg.GetCount())
	return nil
}

func said(dryRun bool, done, would string) string {
	if dryRun {
		return would
	}
	return done
}
