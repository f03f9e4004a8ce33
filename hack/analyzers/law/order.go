package law

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
)

// Order is the check of what comes before the bus is told.
var Order = &analysis.Analyzer{
	Name: "eventorder",
	Doc:  "holds own-echo guard, claim and emit of internal/event in their order",
	Run:  runOrder,
}

// bridge is package internal/event under judgement.
type bridge struct {
	*analysis.Pass
	functions map[*types.Func]*ast.FuncDecl
	telling   map[*types.Func]bool // calling it may tell the bus
}

func runOrder(pass *analysis.Pass) (any, error) {
	if !isEvent(pass.Pkg) {
		return nil, nil
	}
	b := bridge{Pass: pass, functions: functions(pass), telling: map[*types.Func]bool{}}
	b.spread()
	for fn, decl := range b.functions {
		switch owner := receiver(fn); {
		case owner == "Bridge":
			b.comparisons(decl)
			if b.telling[fn] && fn.Exported() {
				b.judge(decl)
			}
		case owner != "Emitter" && b.telling[fn]:
			b.Reportf(decl.Name.Pos(), "only the emitter and the bridge tell the bus: %s does too", fn.Name())
		}
	}
	return nil, nil
}

// spread marks what tells the bus by a call, through any number of functions of the package.
func (b bridge) spread() {
	for grown := true; grown; {
		grown = false
		for fn, decl := range b.functions {
			if !b.telling[fn] && b.tells(decl.Body).IsValid() {
				b.telling[fn], grown = true, true
			}
		}
	}
}

// tells is where a piece of code first tells the bus.
func (b bridge) tells(n ast.Node) token.Pos {
	first := token.NoPos
	ast.Inspect(n, func(n ast.Node) bool {
		// A method that is handed on is as good as called.
		if id, ok := n.(*ast.Ident); ok && !first.IsValid() {
			if fn, ok := b.TypesInfo.Uses[id].(*types.Func); ok && (isEmit(fn) || b.telling[fn.Origin()] && !isDoor(fn)) {
				first = id.Pos()
			}
		}
		return !first.IsValid()
	})
	return first
}

// isEmit tells the method by which a fact becomes local: emit(Ref).
func isEmit(fn *types.Func) bool {
	sig := fn.Signature()
	return fn.Name() == "emit" && sig.Recv() != nil && sig.Params().Len() == 1 && named(sig.Params().At(0).Type()) == "Ref"
}

// isDoor: an exported method of the emitter or the bridge, which is judged by itself.
func isDoor(fn *types.Func) bool {
	owner := receiver(fn)
	return fn.Exported() && (owner == "Emitter" || owner == "Bridge")
}

// judge holds the statements of a way into the bridge to their order. Both steps stand in its own body, unconditionally.
func (b bridge) judge(decl *ast.FuncDecl) {
	emit := b.tells(decl.Body)
	guard, claim, digest := token.NoPos, token.NoPos, b.reads(decl.Body)
	for _, s := range decl.Body.List {
		step, ok := s.(*ast.IfStmt)
		if !ok || !leaves(step.Body) || b.tells(step.Body).IsValid() {
			continue
		}
		switch {
		case !guard.IsValid() && b.isGuard(step.Cond):
			guard = step.Pos()
		case !claim.IsValid() && b.isClaim(step.Cond):
			claim = step.Pos()
		}
	}
	switch {
	case !guard.IsValid() || guard > emit:
		b.Reportf(emit, "origin: the bus is told before the own echo was dropped by the envelope's producer (DELIVERY-3)")
	case digest.IsValid() && guard > digest, claim.IsValid() && guard > claim:
		b.Reportf(guard, "origin: the own echo is dropped before its digest is read or claimed (DELIVERY-3)")
	}
	if !claim.IsValid() || claim > emit {
		b.Reportf(emit, "digest: the bus is told before the digest was claimed (DELIVERY-4)")
	}
}

// reads is where the digest of an envelope is first read.
func (b bridge) reads(n ast.Node) token.Pos {
	first := token.NoPos
	ast.Inspect(n, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok && !first.IsValid() && b.isPart(sel, "Envelope", "digest", "Digest") {
			first = sel.Pos()
		}
		return !first.IsValid()
	})
	return first
}

// isGuard: the envelope's producer equals the instance, and nothing else is asked.
func (b bridge) isGuard(cond ast.Expr) bool {
	eq, ok := ast.Unparen(cond).(*ast.BinaryExpr)
	return ok && eq.Op == token.EQL && (b.isProducer(eq.X) && b.isInstance(eq.Y) || b.isInstance(eq.X) && b.isProducer(eq.Y))
}

// isClaim: not c.take(digest), where c are the claims.
func (b bridge) isClaim(cond ast.Expr) bool {
	not, ok := ast.Unparen(cond).(*ast.UnaryExpr)
	if !ok || not.Op != token.NOT {
		return false
	}
	call, ok := ast.Unparen(not.X).(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && b.isPart(sel, "claims", "take")
}

// comparisons refuses to know a producer by anything but the envelope: a subject equals no instance.
func (b bridge) comparisons(decl *ast.FuncDecl) {
	ast.Inspect(decl.Body, func(n ast.Node) bool {
		eq, ok := n.(*ast.BinaryExpr)
		if !ok || eq.Op != token.EQL && eq.Op != token.NEQ {
			return true
		}
		other := eq.X
		if b.isInstance(eq.X) {
			other = eq.Y
		} else if !b.isInstance(eq.Y) {
			return true
		}
		if !b.isProducer(other) && b.TypesInfo.Types[other].Value == nil {
			b.Reportf(eq.Pos(), "origin: an instance is compared with the envelope's producer, and with nothing else (DELIVERY-3)")
		}
		return true
	})
}

func (b bridge) isProducer(e ast.Expr) bool {
	return b.isPart(called(e), "Envelope", "producer", "Producer")
}
func (b bridge) isInstance(e ast.Expr) bool { return b.isPart(called(e), "Instance", "id", "ID") }

// called is what a call without arguments calls; anything else is itself.
func called(e ast.Expr) ast.Expr {
	if call, ok := ast.Unparen(e).(*ast.CallExpr); ok && len(call.Args) == 0 {
		return call.Fun
	}
	return ast.Unparen(e)
}

// isPart reports whether an expression is a field or method, by one of those names, of a type of this package.
func (b bridge) isPart(e ast.Expr, owner string, names ...string) bool {
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	picked := b.TypesInfo.Selections[sel]
	if picked == nil || named(picked.Recv()) != owner {
		return false
	}
	for _, n := range names {
		if sel.Sel.Name == n {
			return true
		}
	}
	return false
}

// leaves reports whether a block ends the function.
func leaves(body *ast.BlockStmt) bool {
	if len(body.List) == 0 {
		return false
	}
	_, ok := body.List[len(body.List)-1].(*ast.ReturnStmt)
	return ok
}
