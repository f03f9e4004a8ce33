package law

import (
	"go/ast"
	"go/types"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/analysis"
)

const (
	eventPath  = "internal/event"
	fabricPath = "internal/fabric"
	namingPath = "internal/naming"
)

// within reports whether a package is a folder of ours, or below it.
func within(path, folder string) bool { return strings.Contains("/"+path+"/", "/"+folder+"/") }

func isEvent(p *types.Package) bool { return strings.HasSuffix("/"+p.Path(), "/"+eventPath) }

// support reports whether a package is only there for tests, which may do anything.
func support(p *types.Package) bool {
	return strings.HasSuffix(p.Path(), "test") || within(p.Path(), "test")
}

// sources are the files of a package that are no tests.
func sources(pass *analysis.Pass) (files []*ast.File) {
	for _, f := range pass.Files {
		if !strings.HasSuffix(filepath.Base(pass.Fset.Position(f.FileStart).Filename), "_test.go") {
			files = append(files, f)
		}
	}
	return files
}

// functions are those that a package declares with a body.
func functions(pass *analysis.Pass) map[*types.Func]*ast.FuncDecl {
	out := map[*types.Func]*ast.FuncDecl{}
	for _, f := range sources(pass) {
		for _, d := range f.Decls {
			if decl, ok := d.(*ast.FuncDecl); ok && decl.Body != nil {
				if fn, ok := pass.TypesInfo.Defs[decl.Name].(*types.Func); ok {
					out[fn] = decl
				}
			}
		}
	}
	return out
}

// receiver names the type that a method belongs to, "" for a function.
func receiver(fn *types.Func) string {
	if recv := fn.Signature().Recv(); recv != nil {
		return named(recv.Type())
	}
	return ""
}

// named is the name of a type or of what a pointer points to.
func named(t types.Type) string {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	if n, ok := types.Unalias(t).(*types.Named); ok {
		return n.Obj().Name()
	}
	return ""
}

// from reports whether a type, or what a pointer points to, is one of package internal/event by one of those names.
func fromEvent(t types.Type, names ...string) bool {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil || !isEvent(n.Obj().Pkg()) {
		return false
	}
	for _, name := range names {
		if n.Obj().Name() == name {
			return true
		}
	}
	return false
}
