// Command compasslint runs this repository's own analyzers over packages: compasslint ./…
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/rigelbuild/compass-operator/hack/analyzers/doors"
)

func main() { multichecker.Main(doors.Analyzer) }
