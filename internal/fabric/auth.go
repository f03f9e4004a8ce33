package fabric

import (
	"fmt"

	"github.com/nats-io/nats.go"
)

// authenticate adds credentials and TLS. All of it is read again at each connect, so rotation needs no restart.
func authenticate(o *nats.Options, cfg Config) error {
	var opts []nats.Option
	c := cfg.Credentials
	switch {
	case c.File != "":
		opts = append(opts, nats.UserCredentials(c.File))
	case c.JWT != nil:
		opts = append(opts, nats.UserJWT(c.JWT, c.Sign))
	}
	if c.InboxPrefix != "" {
		opts = append(opts, nats.CustomInboxPrefix(c.InboxPrefix))
	}
	if cfg.TLS != nil {
		opts = append(opts, nats.Secure(cfg.TLS.Clone()))
	}
	if cfg.CAFile != "" {
		opts = append(opts, nats.RootCAs(cfg.CAFile))
	}
	for _, opt := range opts {
		if err := opt(o); err != nil {
			return fmt.Errorf("%w: credentials or certificates: %w", ErrConfig, err)
		}
	}
	return nil
}
