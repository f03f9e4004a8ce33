package schema

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStatements(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql  string
		want []string
	}{
		"empty":          {"  \n-- nothing; here\n/* a; /* b; */ c; */", nil},
		"two":            {"select 1; select 2", []string{"select 1;", "select 2"}},
		"strings":        {"select 'a;b', 'it''s; ok', E'x\\';y'; select 2", []string{"select 'a;b', 'it''s; ok', E'x\\';y';", "select 2"}},
		"quoted name":    {`select "a;b"; select 2`, []string{`select "a;b";`, "select 2"}},
		"dollar":         {"do $$ begin; end $$; do $x$ ; $$ ; $x$; select $1", []string{"do $$ begin; end $$;", "do $x$ ; $$ ; $x$;", "select $1"}},
		"name with $":    {"select a$b$c; select 2", []string{"select a$b$c;", "select 2"}},
		"comment inside": {"select -- ;\n1; select 2", []string{"select -- ;\n1;", "select 2"}},
		"atomic body": {"create function f() begin atomic select case when true then 1 end; select 2; end; select 3",
			[]string{"create function f() begin atomic select case when true then 1 end; select 2; end;", "select 3"}},
		"unfinished": {"select 'a; b", []string{"select 'a; b"}},
	} {
		var got []string
		for _, s := range statements(c.sql) {
			got = append(got, s.text)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func FuzzStatements(f *testing.F) {
	for _, seed := range []string{"select 1;", "$$;$$", "begin atomic;end;", "'", "\"", "/*", "$a$", "E'\\"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		end := 0
		for _, s := range statements(sql) { // ends, goes forward, stays inside
			if s.end <= end || s.end > len(sql) || s.line < 1 {
				t.Fatalf("%q: statement %+v after %d", sql, s, end)
			}
			end = s.end
		}
	})
}
