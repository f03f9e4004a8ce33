package delivery

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/store"
	"github.com/rigelbuild/compass-operator/internal/store/storetest"
)

// jobArgs is one delivery. It carries the content, so that the handler need not read it.
type jobArgs struct {
	Message   string `json:"message"`
	Recipient int    `json:"recipient"`
	Pos       int64  `json:"pos"`
	Text      string `json:"text"`
}

// Kind see river.JobArgs.
func (jobArgs) Kind() string { return "deliver" }

type jobs struct {
	river.WorkerDefaults[jobArgs]
	stage   *stage
	cursors []*cursor
}

// Work is the handler.
func (j *jobs) Work(_ context.Context, job *river.Job[jobArgs]) error {
	j.stage.times.enter(job.Args.Message)
	j.cursors[job.Args.Recipient].reached(job.Args.Pos)
	return nil
}

// newRiver delivers by a job for each recipient. The jobs are put in after the message was committed, in one statement: the
// store lends nobody its transaction. A message counts as committed when its jobs are.
func newRiver(tb testing.TB, recipients int) *stage {
	tb.Helper()
	s := newStage(tb, recipients)
	pool := s.riverPool()
	work := &jobs{stage: s}
	for _, a := range s.agents {
		work.cursors = append(work.cursors, s.cursor(tb.Context(), s.tenant.Session(tb, a)))
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, work)
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: quiet, Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
	})
	must(tb, err)
	must(tb, client.Start(tb.Context()))
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 10*time.Second)
		defer cancel()
		_ = client.StopAndCancel(ctx)
	})
	told := s.local()
	c := s.comms(told, func(ctx context.Context, m store.Message) error {
		var all []river.InsertManyParams
		for n := range recipients {
			all = append(all, river.InsertManyParams{Args: jobArgs{Message: m.ID, Recipient: n, Pos: m.Pos, Text: "some words"}})
		}
		_, err := client.InsertMany(ctx, all)
		return err
	})
	s.serve(edge.Options{Comms: c, Emitter: told})
	return s
}

func (s *stage) riverPool() *pgxpool.Pool {
	tb := s.tb
	tb.Helper()
	db := storetest.NewDatabaseWith(tb, nil)
	s.others = append(s.others, db.Super)
	config, err := pgxpool.ParseConfig(db.Super)
	must(tb, err)
	config.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(tb.Context(), config)
	must(tb, err)
	tb.Cleanup(pool.Close)
	migrator, err := rivermigrate.New[pgx.Tx](riverpgxv5.New(pool), nil)
	must(tb, err)
	_, err = migrator.Migrate(tb.Context(), rivermigrate.DirectionUp, nil)
	must(tb, err)
	return pool
}
