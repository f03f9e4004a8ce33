package doors

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strings"
)

// sqlParameters are those of an unexported function that are named as SQL: it may hand them on as they came, because whoever
// calls it is judged by that name.
func sqlParameters(info *types.Info, fn *ast.FuncDecl) map[types.Object]bool {
	out := map[types.Object]bool{}
	if fn.Name.IsExported() {
		return out
	}
	for _, field := range fn.Type.Params.List {
		for _, id := range field.Names {
			if isSQL(id.Name) {
				out[info.Defs[id]] = true
			}
		}
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		var changed []ast.Expr
		switch n := n.(type) {
		case *ast.AssignStmt:
			changed = n.Lhs
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				changed = []ast.Expr{n.X}
			}
		}
		for _, e := range changed {
			if id, ok := e.(*ast.Ident); ok {
				delete(out, info.Uses[id])
			}
		}
		return true
	})
	return out
}

func isSQL(name string) bool { return strings.HasPrefix(name, "sql") || name == "query" }

// constantSQL refuses SQL that is put together at run time: what a caller said could get into it. The folders below the
// store write statements for roles and schemas, which take no parameters; they quote through pg.Ident.
func (j file) constantSQL(call *ast.CallExpr) {
	if !j.inStore || j.door {
		return
	}
	sig, ok := j.TypesInfo.TypeOf(call.Fun).(*types.Signature)
	if !ok {
		return
	}
	for i := range min(sig.Params().Len(), len(call.Args)) {
		if !takesSQL(sig, i) {
			continue
		}
		id, _ := call.Args[i].(*ast.Ident)
		switch tv := j.TypesInfo.Types[call.Args[i]]; {
		case tv.Value != nil && isSQL(sig.Params().At(i).Name()):
			j.statement(call.Args[i], constant.StringVal(tv.Value))
		case tv.Value == nil && (id == nil || !j.passes[j.TypesInfo.Uses[id]]):
			j.Reportf(call.Args[i].Pos(), "SQL must be a constant; what varies is a parameter ($1)")
		}
	}
	for _, arg := range call.Args {
		if rewrites(j.TypesInfo.TypeOf(arg)) {
			j.Reportf(arg.Pos(), "SQL must be a constant: this rewrites it")
		}
	}
}

// takesSQL tells by name, and where a name is of no use by what stands around it, a context before and parameters behind.
func takesSQL(sig *types.Signature, i int) bool {
	p := sig.Params().At(i)
	if b, ok := p.Type().(*types.Basic); !ok || b.Kind() != types.String {
		return false
	}
	if isSQL(p.Name()) {
		return true
	}
	behind := sig.Variadic() && i == sig.Params().Len()-2 && types.IsInterface(sig.Params().At(i+1).Type().(*types.Slice).Elem())
	return behind && i > 0 && sig.Params().At(0).Type().String() == "context.Context"
}

// queued refuses a statement that is put into a batch past Queue, which is judged.
func (j file) queued(e ast.Expr) {
	if !j.inStore || j.door {
		return
	}
	switch e := e.(type) {
	case *ast.SelectorExpr:
		if e.Sel.Name != "QueuedQueries" {
			return
		}
	case *ast.CompositeLit:
		if named, ok := types.Unalias(j.TypesInfo.TypeOf(e)).(*types.Named); !ok || named.Obj().Name() != "QueuedQuery" {
			return
		}
	default:
		return
	}
	j.Reportf(e.Pos(), "a statement comes into a batch by Queue")
}

// rewrites tells of a pgx.QueryRewriter.
func rewrites(t types.Type) bool {
	if t == nil {
		return false
	}
	m, _, _ := types.LookupFieldOrMethod(t, true, nil, "RewriteQuery")
	_, ok := m.(*types.Func)
	return ok
}
