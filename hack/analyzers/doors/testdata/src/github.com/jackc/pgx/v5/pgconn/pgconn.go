package pgconn

type PgConn struct{}
