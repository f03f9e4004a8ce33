package admin_test

import (
	"testing"
	"time"

	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// Whoever works in a database is counted, whoever looks after it is not.
func TestSessions(t *testing.T) {
	t.Parallel()
	db := storetest.NewDatabaseWith(t, nil)
	a := newAdmin(t)
	count := func() int {
		t.Helper()
		n, err := a.Sessions(t.Context(), db.Name)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	storetest.Connect(t, db.Super)
	storetest.Connect(t, db.Admin)
	if n := count(); n != 0 {
		t.Errorf("%d sessions of a database in which nobody works", n)
	}
	conn := storetest.Connect(t, db.App)
	if n := count(); n != 1 {
		t.Errorf("%d sessions, want the one of the app", n)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); count() != 0; {
		if time.Now().After(deadline) {
			t.Fatal("a session that has ended is still counted")
		}
	}
}
