package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/api/proto/compass/v1/compassv1connect"
)

// tailPause is between a stream that broke and the next.
const tailPause = time.Second

type tail struct {
	speaker
	history bool

	at       access
	out      io.Writer
	channels map[string]string // names by id; those that are shown
	handles  map[string]string // of accounts, by id
	seen     map[string]int64  // rev, by channel
	only     string            // id; empty: all
}

func (p *plugin) tailCommand() *cobra.Command {
	o := &tail{speaker: speaker{plugin: p}}
	cmd := &cobra.Command{
		Use: "tail TENANT [CHANNEL]", Short: "Follow what is said in the channels that the tenant's admin is in",
		Long: "Follow what is said in the channels that the tenant's admin is in, or in one of them, from now on and until it is\n" +
			"interrupted. A message that changes is shown again. A connection that breaks is made again, and nothing is missed.",
		Example: "  kubectl compass tail acme\n  kubectl compass tail acme general --history",
		Args:    between(1, 2, "TENANT [CHANNEL]"), RunE: o.run,
	}
	o.flags(cmd.Flags())
	cmd.Flags().BoolVar(&o.history, "history", false, "begin with what is there")
	return cmd
}

func (o *tail) run(cmd *cobra.Command, args []string) error {
	o.out, o.seen, o.channels, o.handles = cmd.OutOrStdout(), map[string]int64{}, map[string]string{}, map[string]string{}
	if err := o.begin(cmd, args); err != nil {
		return err
	}
	ctx := cmd.Context()
	for {
		err := o.follow(ctx)
		switch code := connect.CodeOf(err); {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // interrupted, which is how this ends
		case err != nil && code != connect.CodeUnavailable && code != connect.CodeUnknown && code != connect.CodeDeadlineExceeded:
			return fmt.Errorf("follow: %w", err)
		}
		pause := time.NewTimer(tailPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}

// begin looks up who and what there is, and shows history, if it is asked for.
func (o *tail) begin(cmd *cobra.Command, args []string) (err error) {
	ctx, cancel := o.bounded(cmd)
	defer cancel()
	if o.at, err = o.as(ctx, args[0]); err != nil {
		return err
	}
	if err := o.look(ctx); err != nil {
		return err
	}
	if len(args) > 1 {
		c, names, err := findChannel(ctx, o.at, args[1])
		if err != nil {
			return err
		}
		if c == nil {
			return fmt.Errorf("the tenant's admin is in no channel %q; it is in: %s", args[1], orNone(strings.Join(names, ", ")))
		}
		o.only = c.GetId()
	}
	if !o.history {
		return nil
	}
	for id := range o.channels {
		if o.only == "" || o.only == id {
			if err := o.catchUp(ctx, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// look learns the names of channels and accounts.
func (o *tail) look(ctx context.Context) error {
	if err := channels(ctx, o.at, func(c *compassv1.Channel) { o.channels[c.GetId()] = c.GetName() }); err != nil {
		return err
	}
	api := compassv1connect.NewAccountServiceClient(o.at.http, o.at.url)
	for token := ""; ; {
		page, err := api.ListAccounts(ctx, connect.NewRequest(&compassv1.ListAccountsRequest{PageToken: token}))
		if err != nil {
			return fmt.Errorf("list accounts: %w", err)
		}
		for _, a := range page.Msg.GetAccounts() {
			o.handles[a.GetId()] = a.GetHandle()
		}
		if token = page.Msg.GetNextPageToken(); token == "" {
			return nil
		}
	}
}

// follow shows what one stream says, until it ends.
func (o *tail) follow(ctx context.Context) error {
	stream, err := compassv1connect.NewCommsServiceClient(o.at.http, o.at.url).SubscribeComms(ctx, connect.NewRequest(&compassv1.SubscribeCommsRequest{Resume: o.seen}))
	if err != nil {
		return err
	}
	defer stream.Close() //nolint:errcheck // it ends with the context
	for stream.Receive() {
		switch e := stream.Msg().GetEvent().(type) {
		case *compassv1.SubscribeCommsResponse_Message:
			o.show(e.Message.GetMessage())
		case *compassv1.SubscribeCommsResponse_Resync_:
			err = o.catchUp(ctx, e.Resync.GetChannelId())
		case *compassv1.SubscribeCommsResponse_Channel:
			err = o.look(ctx)
		}
		if err != nil {
			return err
		}
	}
	return stream.Err()
}

// catchUp reads what changed in a channel since what was shown last.
func (o *tail) catchUp(ctx context.Context, channel string) error {
	api := compassv1connect.NewCommsServiceClient(o.at.http, o.at.url)
	for {
		page, err := api.ListMessages(ctx, connect.NewRequest(&compassv1.ListMessagesRequest{ChannelId: channel, AfterRev: o.seen[channel]}))
		if err != nil {
			return fmt.Errorf("read channel %s: %w", channel, err)
		}
		for _, m := range page.Msg.GetMessages() {
			o.show(m)
		}
		if !page.Msg.GetMore() {
			return nil
		}
	}
}

// show prints a message on one line, and remembers how far it has come.
func (o *tail) show(m *compassv1.Message) {
	channel := m.GetChannelId()
	if m.GetRev() <= o.seen[channel] {
		return // a stream that was made again may say it again
	}
	o.seen[channel] = m.GetRev()
	if o.only != "" && o.only != channel {
		return
	}
	note := ""
	switch {
	case m.GetPos() == 0:
		note = " (being written)"
	case m.GetKind() == compassv1.MessageKind_MESSAGE_KIND_ASK:
		note = " (asks)"
	case m.GetKind() == compassv1.MessageKind_MESSAGE_KIND_ANSWER:
		note = " (answers)"
	}
	fmt.Fprintf(o.out, "%s #%s %s%s: %s\n", time.UnixMilli(m.GetCreatedAtUnixMs()).UTC().Format(time.TimeOnly), or(o.channels[channel], channel),
		or(o.handles[m.GetAuthorId()], m.GetAuthorId()), note, textOf(m))
}

func textOf(m *compassv1.Message) string {
	parts := make([]string, 0, len(m.GetBlocks()))
	for _, b := range m.GetBlocks() {
		if handle := b.GetMention(); handle != "" {
			parts = append(parts, "@"+handle)
			continue
		}
		parts = append(parts, plain(b.GetText()))
	}
	return strings.Join(parts, " ")
}

// plain keeps what somebody wrote from moving the cursor of who reads it.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\t':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return -1
		}
		return r
	}, text)
}

func or(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// between refuses another number of arguments, with what they are.
func between(least, most int, names string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if least <= len(args) && len(args) <= most {
			return nil
		}
		return exactly(-1, names)(cmd, args)
	}
}
