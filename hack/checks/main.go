// Command checks judges what no compiler does: who imports whom, the forms of the ledgers, and words that do not belong
// in this repository. Run it at the top of a checkout; without arguments it runs every check.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/rigelbuild/compass-operator/hack/checks/figures"
	"github.com/rigelbuild/compass-operator/hack/checks/imports"
	"github.com/rigelbuild/compass-operator/hack/checks/ledger"
	"github.com/rigelbuild/compass-operator/hack/checks/reqs"
	"github.com/rigelbuild/compass-operator/hack/checks/sizes"
	"github.com/rigelbuild/compass-operator/hack/checks/words"
)

// A check looks at the checkout at root, may say more on out, and returns what is wrong, one sentence each.
type check struct {
	name string
	run  func(ctx context.Context, root string, out io.Writer) ([]string, error)
}

var checks = []check{
	{"imports", imports.Check},
	{"decisions", ledger.Check},
	{"reqs", reqs.Check},
	{"words", words.Check},
	{"sizes", sizes.Check},
	{"figures", figures.Check},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	root := flag.String("root", ".", "the top of the checkout")
	flag.Parse()
	if !runAll(ctx, *root, flag.Args(), os.Stdout) {
		os.Exit(1)
	}
}

// runAll runs the named checks, or all of them, and says whether nothing was found.
func runAll(ctx context.Context, root string, names []string, out io.Writer) bool {
	clean := true
	for _, name := range names {
		if !slices.ContainsFunc(checks, func(c check) bool { return c.name == name }) {
			fmt.Fprintf(out, "no such check: %s\n", name)
			return false
		}
	}
	for _, c := range checks {
		if len(names) > 0 && !slices.Contains(names, c.name) {
			continue
		}
		details := io.Discard // asked for everything, one wants to know what is wrong
		if len(names) > 0 {
			details = out
		}
		found, err := c.run(ctx, root, details)
		if err != nil {
			found = append(found, err.Error())
		}
		if len(found) > 0 {
			clean = false
			fmt.Fprintf(out, "%s: %d found\n  %s\n", c.name, len(found), strings.Join(found, "\n  "))
			continue
		}
		fmt.Fprintf(out, "%s: nothing found\n", c.name)
	}
	return clean
}
