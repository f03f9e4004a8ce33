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
	if !ok || strings.HasSuffix(folder, "test") { // test support may do anything
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
	}
	if e, ok := n.(ast.Expr); ok {
		j.text(e)
		j.connection(e)
	}
}

// connection refuses a value that leads to a connection, wherever it comes from.
func (j file) connection(e ast.Expr) {
	if j.door {
		return
	}
	switch e.(type) {
	case *ast.Ident, *ast.SelectorExpr, *ast.CallExpr:
	default:
		return
	}
	tv, ok := j.TypesInfo.Types[e]
	if !ok || tv.IsType() {
		return
	}
	results := []types.Type{tv.Type}
	if tuple, ok := tv.Type.(*types.Tuple); ok {
		results = nil
		for v := range tuple.Variables() {
			results = append(results, v.Type())
		}
	}
	for _, t := range results {
		name := handle(t)
		if name == "" {
			continue
		}
		j.Reportf(e.Pos(), "%s is not for this file: go through query, exec, do, beginTenantTx or another door of doors.go", name)
	}
}

// handle names what a type leads to, "" for nothing.
func handle(t types.Type) string {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	named, ok := t.(*types.Named)
	if !ok || named.Obj().Pkg() == nil {
		return ""
	}
	path, name := named.Obj().Pkg().Path(), named.Obj().Name()
	switch {
	case strings.HasSuffix(path, "pgxpool") && (name == "Pool" || name == "Conn" || name == "Tx" || name == "Config"):
		return "pgxpool." + name
	case strings.HasSuffix(path, "jackc/pgx/v5") && (name == "Conn" || name == "ConnConfig"):
		return "pgx." + name
	case strings.HasSuffix(path, "pgconn") && name == "PgConn":
		return "pgconn." + name
	case strings.HasSuffix(path, storePath) && (name == "pool" || name == "database" || name == "scope"):
		return "a " + name
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

// sqlParameters are those of an unexported function that are named as SQL: it may hand them on, because whoever calls it is
// judged by that name.
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
		p := sig.Params().At(i)
		if b, ok := p.Type().(*types.Basic); !ok || b.Kind() != types.String || !isSQL(p.Name()) {
			continue
		}
		id, _ := call.Args[i].(*ast.Ident)
		if tv := j.TypesInfo.Types[call.Args[i]]; tv.Value == nil && (id == nil || !j.passes[j.TypesInfo.Uses[id]]) {
			j.Reportf(call.Args[i].Pos(), "SQL must be a constant; what varies is a parameter ($1)")
		}
	}
}
