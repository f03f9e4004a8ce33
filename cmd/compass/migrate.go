package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rigelbuild/compass-operator/internal/store/schema"
	"github.com/rigelbuild/compass-operator/migrations"
)

// migrateCommand is for people who run migrations themselves; in Kubernetes the operator does.
func migrateCommand() *cobra.Command {
	var dsnFile string
	cmd := &cobra.Command{Use: "migrate", Short: "Bring the schema of a database to what this binary serves"}
	cmd.PersistentFlags().StringVar(&dsnFile, "dsn-file", "", "file with the URL of the database, as a role that may act as its owner, direct and not through a pooler; - reads it from standard input")
	runner := func(cmd *cobra.Command) (*schema.Runner, error) { return openSchema(dsnFile, cmd.InOrStdin()) }
	cmd.AddCommand(
		&cobra.Command{
			Use: "up", Short: "Apply what is pending", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				r, err := runner(cmd)
				if err != nil {
					return err
				}
				status, err := r.Up(cmd.Context())
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "schema is at version %d\n", status.Version)
				return nil
			},
		},
		&cobra.Command{
			Use: "status", Short: "Show what is applied and what is pending", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				r, err := runner(cmd)
				if err != nil {
					return err
				}
				return printStatus(cmd, r)
			},
		},
		&cobra.Command{
			Use: "plan", Short: "Show the statements that up would run", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				r, err := runner(cmd)
				if err != nil {
					return err
				}
				steps, err := r.Plan(cmd.Context())
				for _, step := range steps {
					fmt.Fprintf(cmd.OutOrStdout(), "-- %s\n%s\n", step.Name, step.Rendered)
				}
				return err
			},
		},
	)
	return cmd
}

func printStatus(cmd *cobra.Command, r *schema.Runner) error {
	status, err := r.Status(cmd.Context())
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "schema is at version %d; this binary serves %d to %d\n", status.Version, schema.Min, schema.Max)
	audit, err := r.Audit(cmd.Context())
	if err != nil {
		return err
	}
	return audit.Err()
}

func openSchema(dsnFile string, stdin io.Reader) (*schema.Runner, error) {
	dsn, err := readSecret(dsnFile, stdin)
	if err != nil {
		return nil, err
	}
	files, err := schema.Load(migrations.FS)
	if err != nil {
		return nil, err
	}
	return schema.New(schema.Options{DSN: dsn, Migrations: files})
}

// readSecret reads a secret from a file or, for -, from standard input: never from arguments, which everybody can list.
func readSecret(path string, stdin io.Reader) (string, error) {
	var raw []byte
	var err error
	switch path {
	case "":
		return "", errors.New("no DSN: name the file that holds it with --dsn-file")
	case "-":
		raw, err = io.ReadAll(io.LimitReader(stdin, 64<<10))
	default:
		raw, err = os.ReadFile(path)
	}
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}
