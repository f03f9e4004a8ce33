package store

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config says which databases a process may use, and with which rights.
type Config struct {
	// Databases are all that this process serves; database 0 must be among them (required).
	Databases []Database
	// Bootstrap makes a context without a tenant mean the bootstrap tenant, and makes that tenant at Open: standalone only.
	Bootstrap bool
	// Fenced is for the delivery worker: every write must go through writerDo, so exec, do and beginTenantTx refuse, and
	// query and queryOne are read only (protocol, "Fence").
	Fenced bool
	// MaxConns bounds the app pool of each database. Default 20.
	MaxConns int32
	// ExecMode overrides what is detected: "statement" (named prepared statements: a direct connection or a pooler that
	// tracks them), "describe" or "exec". Empty means detect. A mode that the pooler in front cannot serve is refused.
	ExecMode string
	// Limits returns the limits of a tenant; it is asked at every call and must not block. Default: DefaultLimits for all.
	Limits func(TenantID) Limits
	// RouteTTL is how long a tenant's placement is remembered where there is more than one database. Default 5 s.
	RouteTTL time.Duration
	// Log gets what happens outside a call. Default: none.
	Log *slog.Logger
	// Now is the clock of caches; what must be true across processes is judged by the database's clock. Default time.Now.
	Now func() time.Time
}

// Database is one database and the connections that this process has to it. An empty DSN means: not this right. App,
// System and Provision may lead through a pooler in transaction mode.
type Database struct {
	ID        int // 0 is the shared database, where routing truth lives
	App       string
	System    string
	Provision string
	// Direct leads to the server itself as the system role, for leases.
	Direct string
}

const (
	defaultMaxConns = 20
	systemConns     = 4
	provisionConns  = 2
	defaultRouteTTL = 5 * time.Second
	connectTimeout  = 5 * time.Second
	maxConnLifetime = 30 * time.Minute
)

func (c Config) withDefaults() (Config, error) {
	zero, seen := false, map[int]bool{}
	for _, d := range c.Databases {
		if d.ID < 0 || seen[d.ID] {
			return c, fmt.Errorf("database %d is listed twice or below zero", d.ID)
		}
		if d.App == "" {
			return c, fmt.Errorf("database %d has no app connection", d.ID)
		}
		seen[d.ID], zero = true, zero || d.ID == 0
	}
	if !zero {
		return c, errors.New("database 0 is missing: it says where every tenant lives")
	}
	if c.MaxConns <= 0 {
		c.MaxConns = defaultMaxConns
	}
	if c.RouteTTL <= 0 {
		c.RouteTTL = defaultRouteTTL
	}
	if c.Limits == nil {
		c.Limits = func(TenantID) Limits { return DefaultLimits }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return c, nil
}

// poolConfig reads a DSN. Startup settings other than the application's name are refused: a pooler in transaction mode
// either rejects them or lends them to strangers.
func poolConfig(dsn string, conns int32) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("the DSN cannot be read") // the cause would quote it
	}
	for name := range config.ConnConfig.RuntimeParams {
		if name != "application_name" {
			return nil, fmt.Errorf("the DSN sets %s at startup, which does not survive a pooler: take it out; "+
				"settings of a tenant belong into its limits, others into ALTER ROLE … SET", name)
		}
	}
	config.MaxConns = conns
	config.MinConns = 0
	config.MaxConnLifetime = maxConnLifetime
	config.MaxConnLifetimeJitter = maxConnLifetime / 5
	if config.ConnConfig.ConnectTimeout == 0 || config.ConnConfig.ConnectTimeout > connectTimeout {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	// Until the pooler is known: right everywhere.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	return config, nil
}
