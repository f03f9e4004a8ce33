package pgx

import "context"

type Conn struct{}

func Connect(ctx context.Context, dsn string) (*Conn, error)                      { return nil, nil }
func (*Conn) Exec(ctx context.Context, sql string, args ...any) (int, error)      { return 0, nil }
func (*Conn) CopyFrom(ctx context.Context, table string, rows any) (int64, error) { return 0, nil }

type ConnConfig struct{}

type QueuedQuery struct{ SQL string }

type Batch struct{ QueuedQueries []*QueuedQuery }

func (*Batch) Queue(query string, args ...any) {}

type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (int, error)
	CopyFrom(ctx context.Context, table string, rows any) (int64, error)
	Conn() *Conn
}
