package fabric

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/jwt/v2"
)

// ServerTrust is whom one server believes: the operator that it was started with and the signing keys that it knows of it.
// A server learns another signing key only by a restart (ruling O1), so this tells which of them still need one.
type ServerTrust struct {
	Server   string // name
	Operator string // public key; empty without operator mode
	Signing  []string
}

// Trust asks every server whom it believes; expect as in Servers. Sorted by server.
func (a *Accounts) Trust(ctx context.Context, expect int) ([]ServerTrust, error) {
	answers, err := a.gather(ctx, "$SYS.REQ.SERVER.PING.VARZ", nil, expect)
	if err != nil {
		return nil, fmt.Errorf("ask servers for their operator: %w", err)
	}
	var out []ServerTrust
	for _, msg := range answers {
		var v struct {
			Server struct{ Name string }
			Data   struct {
				Operators []struct {
					Subject string `json:"sub"`
					Nats    struct {
						SigningKeys []string `json:"signing_keys"`
					} `json:"nats"`
				} `json:"trusted_operators_claim"`
			}
		}
		if err := json.Unmarshal(msg.Data, &v); err != nil {
			return nil, fmt.Errorf("read answer of a server: %w", err)
		}
		t := ServerTrust{Server: v.Server.Name}
		for _, o := range v.Data.Operators {
			t.Operator, t.Signing = o.Subject, append(t.Signing, o.Nats.SigningKeys...)
		}
		slices.Sort(t.Signing)
		out = append(out, t)
	}
	slices.SortFunc(out, func(x, y ServerTrust) int { return strings.Compare(x.Server, y.Server) })
	if len(out) < max(expect, 1) {
		return out, fmt.Errorf("ask servers for their operator: %w: %d of %d answered", ErrUnavailable, len(out), max(expect, 1))
	}
	return out, nil
}

// RefusedImports names the imports of the account that some server holds and does not serve: the exporter's word is
// missing, or the exporter is. A resolver stores such an account and says yes (lessons operator 31). A server finds out when
// the first user of the account connects to it; one that has not says nothing. Sorted.
func (a *Accounts) RefusedImports(ctx context.Context, w AccountWrite) ([]string, error) {
	answers, err := a.gather(ctx, "$SYS.REQ.ACCOUNT."+w.Account.Public+".INFO", nil, w.Servers)
	if err != nil {
		return nil, fmt.Errorf("inspect account %s: %w", w.Account.Name, err)
	}
	if len(answers) < w.Servers {
		return nil, fmt.Errorf("inspect account %s: %w: %d of %d servers answered", w.Account.Name, ErrUnavailable, len(answers), w.Servers)
	}
	var out []string
	for _, msg := range answers {
		var v struct {
			Data *struct {
				Imports []servedImport `json:"imports"`
			} `json:"data"`
		}
		if err := json.Unmarshal(msg.Data, &v); err != nil {
			return nil, fmt.Errorf("inspect account %s: read answer: %w", w.Account.Name, err)
		}
		if v.Data == nil { // it has not needed the account yet
			continue
		}
		for _, want := range w.Account.claims.Imports {
			served := slices.ContainsFunc(v.Data.Imports, func(i servedImport) bool { return i.serves(want) })
			if !served && !slices.Contains(out, want.Name) {
				out = append(out, want.Name)
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// servedImport is an import as a server has it in use.
type servedImport struct {
	jwt.Import
	Invalid bool `json:"invalid"`
}

func (i servedImport) serves(want *jwt.Import) bool {
	return !i.Invalid && i.Type == want.Type && i.Account == want.Account && i.Subject == want.Subject
}
