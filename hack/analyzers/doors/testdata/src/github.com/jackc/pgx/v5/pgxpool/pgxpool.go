package pgxpool

import "context"

type Pool struct{}

type (
	Conn   struct{}
	Tx     struct{}
	Config struct{}
)

func New(ctx context.Context, dsn string) (*Pool, error)                     { return nil, nil }
func (*Pool) Exec(ctx context.Context, sql string, args ...any) (int, error) { return 0, nil }
