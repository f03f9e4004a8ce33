package v1alpha1

import (
	_ "embed" // for the text below
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
)

//go:embed conditions.go
var conditionsSource string

// Explain returns what is documented of each condition and reason, by its name.
func Explain() map[string]string {
	out := map[string]string{}
	file, err := parser.ParseFile(token.NewFileSet(), "conditions.go", conditionsSource, parser.ParseComments)
	if err != nil { // it compiled
		return out
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Doc == nil || len(spec.Values) != 1 {
			return true
		}
		literal, ok := spec.Values[0].(*ast.BasicLit)
		if !ok {
			return true
		}
		name, err := strconv.Unquote(literal.Value)
		if err == nil {
			text := strings.Join(strings.Fields(spec.Doc.Text()), " ")
			out[name] = strings.TrimPrefix(text, spec.Names[0].Name)
		}
		return true
	})
	return out
}
