package law

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

// Listen is the check of who listens.
var Listen = &analysis.Analyzer{
	Name: "eventlisten",
	Doc:  "lets no listener judge what is a copy: that is the bridge's",
	Run:  runListen,
}

const oneCopy = "a listener gets a fact once and judges no copies: the bridge does (DELIVERY-4)"

func runListen(pass *analysis.Pass) (any, error) {
	if support(pass.Pkg) || isEvent(pass.Pkg) {
		return nil, nil
	}
	for _, f := range sources(pass) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				envelopes(pass, n)
			case *ast.MapType:
				memory(pass, n)
			case *ast.IfStmt:
				passesOver(pass, n)
			}
			return true
		})
	}
	return nil, nil
}

// envelopes refuses to look into one.
func envelopes(pass *analysis.Pass, id *ast.Ident) {
	obj := pass.TypesInfo.Uses[id]
	if obj == nil || obj.Pkg() == nil || !isEvent(obj.Pkg()) {
		return
	}
	switch obj := obj.(type) {
	case *types.TypeName:
		if obj.Name() == "Digest" || obj.Name() == "Envelope" {
			pass.Reportf(id.Pos(), "%s is the bridge's: %s", obj.Name(), oneCopy)
		}
	case *types.Func:
		if obj.Name() == "Decode" {
			pass.Reportf(id.Pos(), "envelopes are opened by the bridge: %s", oneCopy)
		}
	}
}

// memory refuses a map by what was told.
func memory(pass *analysis.Pass, m *ast.MapType) {
	if t := pass.TypesInfo.TypeOf(m.Key); t != nil && holdsFact(t) {
		pass.Reportf(m.Pos(), "a memory of facts: %s", oneCopy)
	}
}

// holdsFact reports whether a type is a reference or an event, or a struct or array of one.
func holdsFact(t types.Type) bool {
	if fromEvent(t, "Ref", "Event", "Fact") {
		return true
	}
	switch u := t.Underlying().(type) {
	case *types.Struct:
		for f := range u.Fields() {
			if holdsFact(f.Type()) {
				return true
			}
		}
	case *types.Array:
		return holdsFact(u.Elem())
	}
	return false
}

// passesOver refuses to skip an event because of what was told before: an if that only leaves, and whose condition looks a
// part of the event up in a memory, or holds its version or its place against a number that is kept.
func passesOver(pass *analysis.Pass, s *ast.IfStmt) {
	if s.Else != nil || len(s.Body.List) != 1 || !isLeave(s.Body.List[0]) {
		return
	}
	suspicious := func(e ast.Expr) bool { return remembered(pass, e) || outrun(pass, e) }
	found := anyExpr(s.Cond, suspicious)
	if init, ok := s.Init.(*ast.AssignStmt); ok {
		for _, e := range init.Rhs {
			found = found || anyExpr(e, suspicious)
		}
	}
	if found {
		pass.Reportf(s.Pos(), "an event is passed over for what was told before: %s", oneCopy)
	}
}

func anyExpr(e ast.Expr, is func(ast.Expr) bool) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		if x, ok := n.(ast.Expr); ok && is(x) {
			found = true
		}
		return !found
	})
	return found
}

func isLeave(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.BranchStmt:
		return s.Tok == token.CONTINUE || s.Tok == token.BREAK
	case *ast.ReturnStmt:
		return len(s.Results) == 0
	}
	return false
}

// remembered: m[…] of a map to bool or struct{}, or Contains(…, …), by the row or the version of an event. To look up by
// what an event lies within is interest, not memory.
func remembered(pass *analysis.Pass, e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.IndexExpr:
		m, ok := pass.TypesInfo.TypeOf(e.X).Underlying().(*types.Map)
		return ok && isMark(m.Elem()) && ofEvent(pass, e.Index, "RowID", "Version", "Seq")
	case *ast.CallExpr:
		sel, ok := e.Fun.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "Contains" && len(e.Args) == 2 && ofEvent(pass, e.Args[1], "RowID", "Version", "Seq")
	}
	return false
}

func isMark(t types.Type) bool {
	if b, ok := t.Underlying().(*types.Basic); ok {
		return b.Kind() == types.Bool
	}
	s, ok := t.Underlying().(*types.Struct)
	return ok && s.NumFields() == 0
}

// outrun: the version or sequence of an event against something that is kept.
func outrun(pass *analysis.Pass, e ast.Expr) bool {
	cmp, ok := e.(*ast.BinaryExpr)
	if !ok {
		return false
	}
	switch cmp.Op {
	case token.LSS, token.LEQ, token.GTR, token.GEQ, token.EQL:
		for _, sides := range [][2]ast.Expr{{cmp.X, cmp.Y}, {cmp.Y, cmp.X}} {
			if ofEvent(pass, sides[0], "Version", "Seq") && pass.TypesInfo.Types[sides[1]].Value == nil {
				return true
			}
		}
	}
	return false
}

// ofEvent reports whether an expression holds one of those fields of an event or reference, or a whole one.
func ofEvent(pass *analysis.Pass, e ast.Expr, fields ...string) bool {
	return anyExpr(e, func(x ast.Expr) bool {
		if sel, ok := x.(*ast.SelectorExpr); ok {
			t := pass.TypesInfo.TypeOf(sel.X)
			if t == nil || !fromEvent(t, "Ref", "Event") {
				return false
			}
			for _, f := range fields {
				if sel.Sel.Name == f {
					return true
				}
			}
			return sel.Sel.Name == "Ref"
		}
		id, ok := x.(*ast.Ident)
		return ok && id == e && pass.TypesInfo.TypeOf(id) != nil && fromEvent(pass.TypesInfo.TypeOf(id), "Ref", "Event")
	})
}
