// Command compass is every process of the data plane: Servers, delivery workers, reference Runners, or all of them in one.
// The operator runs it in pods; people run `compass standalone`.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
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
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(log, "compass:", err)
		return 1
	}
	return 0
}
