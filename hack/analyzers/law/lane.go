package law

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

// Lane is the check of who publishes.
var Lane = &analysis.Analyzer{
	Name: "eventlane",
	Doc:  "lets nobody but the emitter publish on the broadcast or the queue lane",
	Run:  runLane,
}

func runLane(pass *analysis.Pass) (any, error) {
	if support(pass.Pkg) || within(pass.Pkg.Path(), fabricPath) || within(pass.Pkg.Path(), namingPath) {
		return nil, nil // the transport itself
	}
	for _, f := range sources(pass) {
		for _, d := range f.Decls {
			decl, _ := d.(*ast.FuncDecl)
			ast.Inspect(d, func(n ast.Node) bool {
				id, ok := n.(*ast.Ident)
				if !ok {
					return true
				}
				if fn, ok := pass.TypesInfo.Uses[id].(*types.Func); ok {
					if says := publishes(fn); says != "" && !mayPublish(pass, decl, fn) {
						pass.Reportf(id.Pos(), "%s: give the fact to the emitter, whose catalogue decides how it travels (DELIVERY-2)", says)
					}
				}
				return true
			})
		}
	}
	return nil, nil
}

// publishes says what a function publishes, "" for nothing. A broadcast is known by its form, so that an interface of
// somebody's own does not hide it.
func publishes(fn *types.Func) string {
	switch {
	case fn.Name() == "Broadcast" && isBroadcast(fn.Signature()):
		return "a broadcast outside the emitter"
	case fn.Pkg() == nil:
		return ""
	case within(fn.Pkg().Path(), fabricPath) && (fn.Name() == "Enqueue" || fn.Name() == "Publish"):
		return "a reference outside the emitter"
	case within(fn.Pkg().Path(), namingPath) && (fn.Name() == "BroadcastSubject" || fn.Name() == "QueueSubject"):
		return "a subject of a lane outside the fabric"
	}
	return ""
}

// isBroadcast: (context, tenant, event string, envelope []byte, header map[string]string) error.
func isBroadcast(sig *types.Signature) bool {
	want := []string{"context.Context", "string", "string", "[]byte", "map[string]string"}
	if sig.Recv() == nil || sig.Params().Len() != len(want) {
		return false
	}
	for i, w := range want {
		if sig.Params().At(i).Type().String() != w {
			return false
		}
	}
	return true
}

// mayPublish: the emitter itself, and the adapter that hands its queue lane to the fabric's publisher.
func mayPublish(pass *analysis.Pass, decl *ast.FuncDecl, fn *types.Func) bool {
	if decl == nil {
		return false
	}
	by, ok := pass.TypesInfo.Defs[decl.Name].(*types.Func)
	if !ok {
		return false
	}
	if isEvent(pass.Pkg) {
		return receiver(by) == "Emitter"
	}
	if fn.Name() != "Enqueue" || by.Name() != "Enqueue" {
		return false
	}
	params := by.Signature().Params()
	return params.Len() == 2 && fromEvent(params.At(1).Type(), "Ref")
}
