package store

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// Postgres plans with the statistics of a whole table, and EXPLAIN is anybody's: an estimate tells whether a guessed text is a
// frequent one. Of what people write it keeps none; our own ids and words are left to it.
func TestPlansTellNothingOfOthersTexts(t *testing.T) {
	t.Parallel()
	s := seed(t)
	s.mustExec(t, `analyze`)
	rows, err := s.super.Query(t.Context(), `
select s.tablename || '.' || s.attname
  from pg_stats s join pg_attribute a on a.attrelid = ('compass.' || s.tablename)::regclass and a.attname = s.attname
 where s.schemaname = 'compass' and s.tablename <> 'schema_migrations'
   and a.atttypid in ('text'::regtype, 'text[]'::regtype, 'jsonb'::regtype, 'name'::regtype)
   and (s.attname !~ '(^|_)id$' or s.attname = 'client_id')
   and s.attname not in ('action', 'asker_session', 'created_by', 'open_turn', 'role_name', 'stream')
   and not exists (select from pg_constraint c where c.conrelid = a.attrelid and c.contype = 'c' and c.conkey = array[a.attnum]
                   and pg_get_constraintdef(c.oid) ~ 'ANY \(ARRAY\[')
 order by 1`)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, column := range kept {
		t.Errorf("%s: statistics are kept; a migration sets them to 0, or the words are our own", column)
	}
}
