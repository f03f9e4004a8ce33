package schema_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/rigelbuild/compass-operator/internal/store/schema"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Holds REQ-092, REQ-242: six runners at once of which three were given a pooler's address: those are refused with the cure
// before they touch anything, and each file runs once. The lock is the transaction's, so it would hold there too; it is the
// pause of a frozen one that nobody could end through a pooler.
func TestSixAtOnceAlsoThroughAPooler(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	pooler := storetest.NewBouncer(t, db, 2)
	all := mustLoad(t, files(
		"0001_a.sql", foundation+"create table compass.ran (file text);",
		"0002_b.sql", "insert into compass.ran values ('b')",
		"0003_c.sql", "insert into compass.ran values ('c')"))
	var wg sync.WaitGroup
	direct, pooled := make([]error, 3), make([]error, 3)
	run := func(dsn string, into *error) {
		wg.Go(func() {
			r, err := schema.New(schema.Options{DSN: dsn, Migrations: all})
			if err == nil {
				_, err = r.Up(t.Context())
			}
			*into = err
		})
	}
	for i := range 3 {
		run(db.Admin, &direct[i])
		run(pooler.Through(t, db.Admin), &pooled[i])
	}
	wg.Wait()
	for i := range 3 {
		if direct[i] != nil {
			t.Error(direct[i])
		}
		if pooled[i] == nil || !strings.Contains(pooled[i].Error(), "pooler") {
			t.Errorf("through the pooler: %v, want it refused with the cure", pooled[i])
		}
	}
	var ran string
	err := storetest.Connect(t, db.Super).QueryRow(t.Context(), `select string_agg(file, ',' order by file) from compass.ran`).Scan(&ran)
	if err != nil || ran != "b,c" {
		t.Errorf("ran %q (%v), want each file once", ran, err)
	}
}
