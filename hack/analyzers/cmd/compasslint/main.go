// Command compasslint runs this repository's own analyzers over packages: compasslint ./…
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/rigelbuild/compass-operator/hack/analyzers/doors"
	"github.com/rigelbuild/compass-operator/hack/analyzers/law"
)

func main() { multichecker.Main(doors.Analyzer, law.Order, law.Lane, law.Listen) }
