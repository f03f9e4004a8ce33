package store_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
	"github.com/rigelbuild/compass-operator/internal/store/worldtest"
)

// BenchmarkStorePositions compares posts whose positions come from take_position with posts whose positions come from a
// sequence, which is wrong (TestNothingAppearsLate) and as fast as it gets: many clients over many channels, and for
// comparison many clients in one.
func BenchmarkStorePositions(b *testing.B) {
	const clients, posts, rounds = 16, 1500, 7
	for _, c := range []struct {
		name     string
		channels int
		goal     float64
	}{{"999 channels", 999, 0.75}, {"1 channel", 1, 0}} {
		b.Run(c.name, func(b *testing.B) {
			ours, sequence := newPosting(b, "", c.channels), newPosting(b, sqlSequence, c.channels)
			var ratios []float64
			for range rounds {
				a, s := ours.perSecond(b, clients, posts), sequence.perSecond(b, clients, posts)
				b.Logf("%.0f a second, %.0f with a sequence", a, s)
				ratios = append(ratios, a/s)
			}
			slices.Sort(ratios)
			ratio := ratios[rounds/2]
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ratio, "take_position/sequence")
			b.Logf("| take_position, %d clients, %s | %.2f of a sequence | goal %.2f |", clients, c.name, ratio, c.goal)
			if ratio < c.goal {
				b.Errorf("%s: %.2f of a sequence, goal %.2f", c.name, ratio, c.goal)
			}
		})
	}
}

// posting is a tenant with a person in many channels.
type posting struct {
	*worldtest.World
	tenant   *worldtest.Tenant
	person   store.Account
	channels []store.Channel
}

func newPosting(b *testing.B, setup string, channels int) *posting {
	b.Helper()
	db := storetest.NewDatabase(b)
	if setup != "" {
		if _, err := storetest.Connect(b, db.Super).Exec(b.Context(), setup, pgx.QueryExecModeSimpleProtocol); err != nil {
			b.Fatal(err)
		}
	}
	p := &posting{World: worldtest.On(b, db)}
	p.tenant = p.Tenant(b, "acme")
	p.person = p.tenant.Person(b, "ada")
	for i := range channels {
		p.channels = append(p.channels, p.tenant.Channel(b, fmt.Sprint("channel", i), p.person))
	}
	// What is there already, or the plans are those of an empty table, which reads all of it, and each post makes the next slower.
	p.Exec(b, `insert into compass.messages (tenant_id, id, channel_id, author_id, seq, rev, pos, blocks, client_id)
		select c.tenant_id, c.id || i, c.id, c.created_by, i, i, i, '[{"text":{"text":"hello"}}]', c.id || i
		  from compass.channels c, generate_series(1, 5000 / $1) i`, channels)
	p.Exec(b, `analyze`)
	return p
}

// perSecond posts by so many clients, all together posts messages, and returns the rate.
func (p *posting) perSecond(b *testing.B, clients, posts int) float64 {
	b.Helper()
	var next atomic.Int64
	var all sync.WaitGroup
	start := time.Now()
	for range clients {
		all.Go(func() {
			for n := next.Add(1); n <= int64(posts); n = next.Add(1) {
				channel := p.channels[int(n*7919)%len(p.channels)]
				if _, _, _, err := p.Store.AppendMessage(p.tenant.Ctx, p.tenant.Message(p.person, channel, "hello")); err != nil {
					b.Error(err)
				}
			}
		})
	}
	all.Wait()
	return float64(posts) / time.Since(start).Seconds()
}
