package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store/pg"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// login is a connection of tenantB's own SQL login.
func (f *fixture) login(t *testing.T) *pgx.Conn {
	t.Helper()
	name := "ct_" + strings.ToLower(rand.Text())[:20]
	f.mustExec(t, fmt.Sprintf(`create role %s login password 'pw' connection limit 5 in role %s`, name, pg.Ident(f.db.Roles.Tenant)))
	t.Cleanup(func() { f.mustExecLate(t, `drop role `+name) })
	f.mustExec(t, `insert into compass.sql_logins (tenant_id, role_name) values ($1, $2)`, tenantB, name)
	dsn, err := storetest.WithUser(f.db.Straight(t, f.db.App), name, "pw", f.db.Name)
	if err != nil {
		t.Fatal(err)
	}
	return storetest.Connect(t, dsn)
}

// Advisory locks are everybody's. A tenant's login that takes every number of a stream keeps neither its writer out, nor
// whoever takes over, nor the end of a batch that stands in the way.
func TestNumbersTakenByATenantAreInNobodysWay(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"pg_advisory_lock", "pg_advisory_lock_shared"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			ctx := WithTenant(t.Context(), tenantA)
			one := f.acquired(t, "one")
			login := f.login(t)
			if _, err := login.Exec(t.Context(), `select `+how+`(hashtextextended('compass.writer/main', 0))`); err != nil {
				t.Fatal(err)
			}
			if err := f.writerDo(ctx, one.mustFence(t), rename("written")); err != nil {
				t.Errorf("a batch: %v", err)
			}
			if err := one.Raise(t.Context(), one.mustFence(t).Epoch); err != nil {
				t.Errorf("raise: %v", err)
			}
			two := f.lease(t, "two")
			two.waited.Store(true) // as after a try that a batch kept waiting
			f.expire(t)
			if err := two.Acquire(t.Context(), 0); err != nil {
				t.Fatalf("take over: %v", err)
			}
			if err := f.writerDo(ctx, two.mustFence(t), rename("by the next")); err != nil {
				t.Error(err)
			}
			if err := login.Ping(t.Context()); err != nil {
				t.Errorf("the tenant was disconnected: %v", err)
			}
		})
	}
}

// A share of a row is given past whoever waits for the whole, so a holder begins no batch while it raises its epoch: among
// batches without a gap it gets its turn.
func TestRaiseGetsItsTurn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one := f.acquired(t, "one")
	ctx, stop := context.WithCancel(WithTenant(t.Context(), tenantA))
	var writers sync.WaitGroup
	var wrote atomic.Int64
	for range 4 {
		writers.Go(func() {
			for ctx.Err() == nil {
				err := f.writerDo(ctx, one.held(), func(b *pgx.Batch) { b.Queue(`select pg_sleep(0.02)`) })
				if err != nil && ctx.Err() == nil && !errors.Is(err, ErrStaleWriter) {
					t.Error(err)
				}
				wrote.Add(1)
			}
		})
	}
	for round := range int64(5) {
		until(t, "all of them write", func() bool { return wrote.Load() > 20*(round+1) })
		bounded, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		if err := one.Raise(bounded, one.held().Epoch); err != nil {
			t.Error(err)
		}
		cancel()
	}
	stop()
	writers.Wait()
}
