// Command compass is every process of the data plane: Servers, delivery workers, reference Runners, or all of them in one.
// The operator runs it in pods; people run `compass standalone`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run is main with its world as arguments. Results go to out, the log to log; the code is 0 for done or asked to stop, 1
// for a failure, which is on log as one line that says what to do.
func run(ctx context.Context, args []string, out, log io.Writer) int {
	root := &cobra.Command{
		Use:           "compass",
		Short:         "Carry messages between people and agents",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(log)
	root.AddCommand(
		serverCommand(), deliveryCommand(), runnerCommand(), standaloneCommand(), migrateCommand(),
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: cobra.NoArgs,
			Run: func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), version) },
		},
	)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil && errors.Is(err, context.Canceled): // asked to stop before it had begun
		return 0
	}
	fmt.Fprintln(log, "compass:", oneLine(err))
	return 1
}

// oneLine keeps an error whose causes are listed line by line a single record of the log.
func oneLine(err error) string {
	lines := strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' })
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "; ")
}
