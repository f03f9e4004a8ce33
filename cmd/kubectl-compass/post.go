package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
)

// postMost is read of standard input; the tenant's own limit is lower.
const postMost = 1 << 20

type post struct {
	speaker
	mentions []string
	clientID string
	create   bool
}

func (p *plugin) postCommand() *cobra.Command {
	o := &post{speaker: speaker{plugin: p}}
	cmd := &cobra.Command{
		Use: "post TENANT CHANNEL TEXT", Short: "Post a message as the tenant's admin",
		Long: "Post a message as the tenant's admin. CHANNEL is a name or an id; TEXT of - is read from standard input.\n" +
			"Every agent of the channel is owed the message from then on, and those that are mentioned get it at once.",
		Example: "  kubectl compass post acme general 'Is anybody there?'\n" +
			"  kubectl compass post acme general --mention bot --create 'Wake up'\n" +
			"  git log -1 | kubectl compass post acme releases -",
		Args: exactly(3, "TENANT CHANNEL TEXT"), RunE: o.run,
	}
	o.flags(cmd.Flags())
	cmd.Flags().StringSliceVar(&o.mentions, "mention", nil, "handle of an account to mention, without the @; repeatable")
	cmd.Flags().StringVar(&o.clientID, "client-id", "", "what makes a repeat of this command post nothing; empty: a new one")
	cmd.Flags().BoolVar(&o.create, "create", false, "make the channel if there is none of that name")
	return cmd
}

func (o *post) run(cmd *cobra.Command, args []string) error {
	text := args[2]
	if text == "-" {
		read, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), postMost+1))
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		text = strings.TrimRight(string(read), "\n")
	}
	if strings.TrimSpace(text) == "" {
		return errors.New("TEXT is empty: nothing to post")
	}
	ctx, cancel := o.bounded(cmd)
	defer cancel()
	at, err := o.as(ctx, args[0])
	if err != nil {
		return err
	}
	channel, err := o.channel(ctx, at, args[1])
	if err != nil {
		return err
	}
	blocks := make([]*compassv1.Block, 0, len(o.mentions)+1)
	for _, handle := range o.mentions {
		blocks = append(blocks, &compassv1.Block{Content: &compassv1.Block_Mention{Mention: strings.TrimPrefix(handle, "@")}})
	}
	blocks = append(blocks, &compassv1.Block{Content: &compassv1.Block_Text{Text: text}})
	if o.clientID == "" {
		o.clientID = "kubectl-" + rand.Text()
	}
	answer, err := compassv1connect.NewCommsServiceClient(at.http, at.url).PostMessage(ctx, connect.NewRequest(&compassv1.PostMessageRequest{
		ChannelId: channel.GetId(), ClientId: o.clientID, Blocks: blocks,
	}))
	if err != nil {
		return fmt.Errorf("post: %w", err)
	}
	word := "Posted"
	if answer.Msg.GetDuplicate() {
		word = "Was posted before:"
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s %s in %s (%s).\n", word, answer.Msg.GetMessage().GetId(), channel.GetName(), channel.GetId())
	return nil
}

// channel finds the channel, or makes it.
func (o *post) channel(ctx context.Context, at access, which string) (*compassv1.Channel, error) {
	found, names, err := findChannel(ctx, at, which)
	if err != nil || found != nil {
		return found, err
	}
	if !o.create {
		return nil, fmt.Errorf("the tenant's admin is in no channel %q; it is in: %s; add it to that one, or make one with --create", which, orNone(strings.Join(names, ", ")))
	}
	made, err := compassv1connect.NewChannelServiceClient(at.http, at.url).CreateChannel(ctx, connect.NewRequest(&compassv1.CreateChannelRequest{Name: which}))
	if err != nil {
		return nil, fmt.Errorf("make channel %s: %w", which, err)
	}
	return made.Msg.GetChannel(), nil
}

// findChannel finds one by name or id among those that the caller is in; nil and the names of all where it is not there.
func findChannel(ctx context.Context, at access, which string) (found *compassv1.Channel, names []string, err error) {
	err = channels(ctx, at, func(c *compassv1.Channel) {
		if c.GetId() == which || c.GetName() == which {
			found = c
		}
		names = append(names, c.GetName())
	})
	return found, names, err
}

// channels calls with every channel that the caller is in.
func channels(ctx context.Context, at access, each func(*compassv1.Channel)) error {
	api := compassv1connect.NewChannelServiceClient(at.http, at.url)
	for token := ""; ; {
		page, err := api.ListChannels(ctx, connect.NewRequest(&compassv1.ListChannelsRequest{PageToken: token}))
		if err != nil {
			return fmt.Errorf("list channels: %w", err)
		}
		for _, c := range page.Msg.GetChannels() {
			each(c)
		}
		if token = page.Msg.GetNextPageToken(); token == "" {
			return nil
		}
	}
}

// exactly refuses another number of arguments, with what they are.
func exactly(n int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return fmt.Errorf("%s takes %s, and was given %d arguments; see %s --help", cmd.CommandPath(), names, len(args), cmd.CommandPath())
	}
}
