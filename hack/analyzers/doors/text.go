package doors

import (
	"go/ast"
	"go/constant"
	"go/token"
	"regexp"
	"strings"
)

// rule is what a piece of SQL may not contain.
type rule struct {
	pattern *regexp.Regexp
	says    string
	except  []string // folders below the store where it is right
}

// A statement begins at the text's start or behind a semicolon.
const start = `(?is)(?:^|;)\s*(?:/\*.*?\*/\s*)*`

var rules = []rule{
	{regexp.MustCompile(start + `set\s+(?:session\s+)?(?:role|authorization)\s*(?:["%$]?[\w%]*"?)?\s*(?:;|$)`),
		"SET ROLE outlives the transaction: a right has a pool of its own", nil},
	{regexp.MustCompile(start + `reset\s+role\b`),
		"only the migration runner and the admin act as another role", []string{"schema", "admin"}},
	{regexp.MustCompile(start + `set\s+local\s+role\b`),
		"only the migration runner, the mover and the admin act as another role", []string{"schema", "admin", "move"}},
	{regexp.MustCompile(start + `set\s+(?:session\s+)?[a-z_][a-z0-9_.]*\s*(?:=|\bto\b)`),
		"SET outlives the transaction and, behind a pooler, reaches strangers: set_config(…, true)", nil},
	{regexp.MustCompile(start + `update\s+(?:pg_catalog\.)?pg_settings\b`),
		"pg_settings outlives the transaction: set_config(…, true)", nil},
	{regexp.MustCompile(`(?i)\bpg_(?:try_)?advisory_(?:un)?lock(?:_shared|_all)?\s*\(`),
		"a session's lock does not survive a pooler: pg_advisory_xact_lock", []string{"move"}}, // which refuses a pooler
	{regexp.MustCompile(start + `(?:(?:un)?listen\s+[\w"*]+\s*;?\s*$|notify\s+\w+\s*(?:[,;]|$)|discard\s+(?:all|plans|sequences|temp)|` +
		`prepare\s+\w+\s*(?:\(|as\b)|deallocate\s+[\w"]+\s*;?\s*$|declare\s+\w+\s.*\bcursor\b|` +
		`create\s+(?:local\s+|global\s+)?temp(?:orary)?\s)`),
		"this belongs to a session, and a pooler in transaction mode has none", []string{"pg", "move"}}, // which refuse a pooler
}

// text judges every constant string of the package: SQL lives in constants.
func (j file) text(e ast.Expr) {
	switch e.(type) {
	case *ast.BasicLit, *ast.BinaryExpr:
	default:
		return
	}
	tv := j.TypesInfo.Types[e]
	if tv.Value == nil || tv.Value.Kind() != constant.String {
		return
	}
	sql := plain(constant.StringVal(tv.Value))
	if _, ok := e.(*ast.BinaryExpr); ok && !crosses(e, sql, j) {
		return // its parts are judged by themselves
	}
	for _, r := range rules {
		if r.pattern.MatchString(sql) && !contains(r.except, j.folder) {
			j.Reportf(e.Pos(), "%s", r.says)
		}
	}
	if j.inStore && !j.door && scoping.MatchString(sql) {
		j.Reportf(e.Pos(), "a tenant's scope is set by the doors alone")
	}
	if !endsWithTransaction(sql) {
		j.Reportf(e.Pos(), "set_config must end with the transaction: its third argument is the word true, its first a text")
	}
}

var (
	comments = regexp.MustCompile(`--[^\n]*|(?s:/\*.*?\*/)`)
	quoted   = regexp.MustCompile(`"([a-z_][a-z0-9_.]*)"`)
	scoping  = regexp.MustCompile(`(?i)\bset_config\s*\(\s*'compass\.`)
	settings = regexp.MustCompile(`(?i)\bset_config\s*\(`)
)

// plain is a text without comments, its quoted names as they are.
func plain(sql string) string {
	return quoted.ReplaceAllString(comments.ReplaceAllString(sql, " "), "$1")
}

// endsWithTransaction tells whether every set_config of a text is the transaction's, and says itself what it sets.
func endsWithTransaction(sql string) bool {
	for _, at := range settings.FindAllStringIndex(sql, -1) {
		args := arguments(sql[at[1]:])
		if len(args) != 3 || args[2] != "true" || !strings.HasPrefix(args[0], "'") && !strings.HasPrefix(args[0], "$") || args[0] == "'role'" {
			return false
		}
	}
	return true
}

// arguments are those of a call, up to its closing parenthesis.
func arguments(s string) []string {
	var out []string
	inside, depth, from := false, 0, 0
	for i, c := range s {
		switch {
		case c == '\'':
			inside = !inside
		case inside:
		case c == '(':
			depth++
		case c == ',' && depth == 0:
			out, from = append(out, strings.TrimSpace(s[from:i])), i+1
		case c == ')':
			if depth--; depth < 0 {
				return append(out, strings.TrimSpace(s[from:i]))
			}
		}
	}
	return out
}

// first is what a statement of the store begins with. Whatever else there is changes a session, a transaction or the schema.
var (
	first = regexp.MustCompile(`(?i)^\s*(?:select|insert|update|delete|with|values)\b`)
	into  = regexp.MustCompile(`(?i)\b(insert\s+)?into\b`)
)

// statement judges a constant where it is handed over: before, it may be a part of one.
func (j file) statement(e ast.Expr, sql string) {
	sql = plain(sql)
	if !first.MatchString(sql) || strings.Contains(sql, ";") {
		j.Reportf(e.Pos(), "a statement of the store selects, inserts, updates or deletes, and is one")
	}
	for _, m := range into.FindAllStringSubmatch(sql, -1) {
		if m[1] == "" {
			j.Reportf(e.Pos(), "SELECT INTO makes a table")
		}
	}
}

// crosses tells whether a concatenation breaks a rule that none of its parts breaks.
func crosses(e ast.Expr, sql string, j file) bool {
	whole := 0
	for _, r := range rules {
		if r.pattern.MatchString(sql) {
			whole++
		}
	}
	if whole == 0 {
		return false
	}
	parts := 0
	ast.Inspect(e, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		if tv := j.TypesInfo.Types[lit]; tv.Value != nil {
			for _, r := range rules {
				if r.pattern.MatchString(constant.StringVal(tv.Value)) {
					parts++
				}
			}
		}
		return true
	})
	return parts == 0
}

func contains(all []string, s string) bool {
	for _, a := range all {
		if a == s {
			return true
		}
	}
	return false
}

// hotMark stands in the comment of a constant whose statement is on a hot path.
const hotMark = "//compass:hot"

func hotStatements(f *ast.File) []*ast.ValueSpec {
	var out []*ast.ValueSpec
	for _, d := range f.Decls {
		gen, ok := d.(*ast.GenDecl)
		if !ok || gen.Tok != token.CONST {
			continue
		}
		for _, s := range gen.Specs {
			spec := s.(*ast.ValueSpec)
			if marked(spec.Doc) || marked(spec.Comment) || len(gen.Specs) == 1 && marked(gen.Doc) {
				out = append(out, spec)
			}
		}
	}
	return out
}

func marked(g *ast.CommentGroup) bool {
	if g == nil {
		return false
	}
	for _, c := range g.List {
		if strings.HasPrefix(c.Text, hotMark) {
			return true
		}
	}
	return false
}

// A predicate stands behind WHERE, ON or HAVING and ends where another clause begins; what is selected may be as it likes.
var (
	clause = regexp.MustCompile(`(?is)\b(?:where|on|having)\b`)
	next   = regexp.MustCompile(`(?is)\b(?:select|from|join|group\s+by|order\s+by|limit|returning|union|do\s+update|do\s+nothing|for\s+update|for\s+share)\b`)
	// What is known to be leakproof, or is no call at all, or sifts what an index found; whatever else looks like an operator
	// or a function is refused.
	harmless = regexp.MustCompile(`(?is)^(?:=|<>|!=|<|<=|>|>=|::|\*|\+|-|&|(?:then|else|clock_timestamp|mod|hashtext|and|or|not|in|any|all|exists|select|from|as|unnest|array|values|` +
		`greatest|least|count|max|min|sum|array_agg|generate_series|row|with|lateral|using|filter|over)\s*\()$`)
	called = regexp.MustCompile(`(?is)\b(?:i?like|similar\s+to)\b|[a-z_][a-z0-9_.]*\s*\(|[-+*/<>=~!@#%^&|?:]+`)
	texts  = regexp.MustCompile(`'[^']*'`)
)

// leak is what of a predicate is not leakproof, "" for nothing.
func leak(predicate string) string {
	for _, m := range called.FindAllString(texts.ReplaceAllString(predicate, "''"), -1) {
		if !harmless.MatchString(strings.TrimSpace(m)) {
			return strings.TrimSpace(m)
		}
	}
	return ""
}

// predicates returns the conditions of a statement.
func predicates(sql string) []string {
	var out []string
	for _, at := range clause.FindAllStringIndex(sql, -1) {
		rest := sql[at[1]:]
		if end := next.FindStringIndex(rest); end != nil {
			rest = rest[:end[0]]
		}
		out = append(out, enclosed(rest))
	}
	return out
}

// enclosed cuts at the parenthesis that closes the statement around.
func enclosed(s string) string {
	depth := 0
	for i, c := range s {
		switch c {
		case '(':
			depth++
		case ')':
			if depth--; depth < 0 {
				return s[:i]
			}
		}
	}
	return s
}

// leaky refuses what Postgres will not use as an index condition under row-level security, because it could tell about
// rows that the policy hides (lab section 7).
func (j file) leaky(spec *ast.ValueSpec) {
	for _, v := range spec.Values {
		tv := j.TypesInfo.Types[v]
		if tv.Value == nil || tv.Value.Kind() != constant.String {
			continue
		}
		for _, p := range predicates(plain(constant.StringVal(tv.Value))) {
			if m := leak(p); m != "" {
				j.Reportf(v.Pos(), "%q is not leakproof: under row-level security it keeps the predicate off the index", m)
			}
		}
	}
}
