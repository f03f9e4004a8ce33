package doors

import (
	"go/ast"
	"go/types"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Analyzer is the check.
var Analyzer = &analysis.Analyzer{
	Name: "doors",
	Doc:  "keeps every statement of internal/store on the doors",
	Run:  run,
}

const storePath = "internal/store"

// doorFiles make the doors. lease.go holds a session of its own for the delivery worker's lease; foreign.go bounds what a pool
// of somebody else's database may answer.
var doorFiles = map[string]bool{
	"config.go": true, "direct.go": true, "doors.go": true, "foreign.go": true, "lease.go": true, "open.go": true,
	"platform.go": true, "pool.go": true, "route.go": true, "rows.go": true, "system.go": true, "tx.go": true, "vet.go": true,
}

// file is one file under judgement.
type file struct {
	*analysis.Pass
	inStore bool                  // package store itself, not a folder below it
	folder  string                // the folder below the store, "" for the store itself
	door    bool                  // it makes the doors
	passes  map[types.Object]bool // parameters that the function at hand may hand on as SQL
}

func run(pass *analysis.Pass) (any, error) {
	folder, ok := below(pass.Pkg.Path())
	if !ok || folder == "storetest" || folder == "worldtest" { // test support may do anything
		return nil, nil
	}
	for _, f := range pass.Files {
		name := filepath.Base(pass.Fset.Position(f.FileStart).Filename)
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		j := file{Pass: pass, inStore: folder == "", folder: folder, door: folder != "" || doorFiles[name]}
		hot := hotStatements(f)
		ast.Inspect(f, func(n ast.Node) bool {
			if fn, ok := n.(*ast.FuncDecl); ok {
				j.passes = sqlParameters(pass.TypesInfo, fn)
			}
			j.node(n, name)
			return true
		})
		for _, spec := range hot {
			j.leaky(spec)
		}
	}
	return nil, nil
}

// below returns the folder of a package of the store, "" for the store itself.
func below(path string) (string, bool) {
	i := strings.Index("/"+path+"/", "/"+storePath+"/")
	if i < 0 {
		return "", false
	}
	return strings.Trim(("/" + path + "/")[i+len(storePath)+2:], "/"), true
}

func (j file) node(n ast.Node, name string) {
	switch n := n.(type) {
	case *ast.CallExpr:
		j.call(n)
		j.constantSQL(n)
	case *ast.ValueSpec:
		j.loopDeclared(n, name)
	case *ast.Field:
		j.reaches(n.Type, j.TypesInfo.TypeOf(n.Type))
	}
	if e, ok := n.(ast.Expr); ok {
		j.text(e)
		j.connection(e)
		j.queued(e)
	}
}

// connection refuses a value that leads to a connection, wherever it comes from.
func (j file) connection(e ast.Expr) {
	if tv, ok := j.TypesInfo.Types[e]; ok && !tv.IsType() {
		j.reaches(e, tv.Type)
	}
}

// reaches refuses what is, holds or returns something that leads to a connection.
func (j file) reaches(e ast.Expr, t types.Type) {
	if j.door {
		return
	}
	results := []types.Type{t}
	if tuple, ok := t.(*types.Tuple); ok {
		results = nil
		for v := range tuple.Variables() {
			results = append(results, v.Type())
		}
	}
	for _, t := range results {
		if name := handle(t); name != "" {
			j.Reportf(e.Pos(), "%s is not for this file: go through query, exec, do, beginTenantTx or another door of doors.go", name)
		}
	}
}

// handles are the types that lead to a connection, by the end of their package's path.
var handles = map[string]map[string]bool{
	"jackc/pgx/v5/pgxpool": {"Pool": true, "Conn": true, "Tx": true, "Config": true},
	"jackc/pgx/v5":         {"Conn": true, "ConnConfig": true},
	"jackc/pgx/v5/pgconn":  {"PgConn": true},
	"database/sql":         {"DB": true, "Conn": true, "Tx": true, "Stmt": true},
	storePath:              {"pool": true, "database": true, "scope": true, "tenantTx": true},
}

// handle names what a type leads to, "" for nothing.
func handle(t types.Type) string {
	switch t := types.Unalias(t).(type) {
	case *types.Pointer:
		return handle(t.Elem())
	case *types.Slice:
		return handle(t.Elem())
	case *types.Array:
		return handle(t.Elem())
	case *types.Chan:
		return handle(t.Elem())
	case *types.Map:
		return handle(t.Elem())
	case *types.Named:
		if t.Obj().Pkg() == nil {
			return ""
		}
		path, name := t.Obj().Pkg().Path(), t.Obj().Name()
		for end, names := range handles {
			if (path == end || strings.HasSuffix(path, "/"+end)) && names[name] {
				if end == storePath {
					return "a " + name
				}
				return t.Obj().Pkg().Name() + "." + name
			}
		}
	}
	return ""
}

func (j file) call(call *ast.CallExpr) {
	if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == "CopyFrom" {
		if fn, ok := j.TypesInfo.Uses[sel.Sel].(*types.Func); ok && fn.Pkg() != nil && strings.Contains(fn.Pkg().Path(), "jackc/pgx") {
			j.Reportf(call.Pos(), "COPY FROM does not work under row-level security: INSERT … SELECT unnest(…)")
		}
	}
	if tv, ok := j.TypesInfo.Types[call.Fun]; ok && tv.IsType() && isLoop(tv.Type) {
		j.Reportf(call.Pos(), "a system loop is one of the constants in system.go, which auditors read (REQ-101)")
	}
}

func isLoop(t types.Type) bool {
	named, ok := t.(*types.Named)
	return ok && named.Obj().Name() == "SystemLoop"
}

func (j file) loopDeclared(spec *ast.ValueSpec, name string) {
	if name == "system.go" {
		return
	}
	for _, id := range spec.Names {
		if c, ok := j.TypesInfo.Defs[id].(*types.Const); ok && isLoop(c.Type()) {
			j.Reportf(id.Pos(), "declare system loops in system.go, which auditors read (REQ-101)")
		}
	}
}
