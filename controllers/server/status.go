package server

import (
	"fmt"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/backend"
	"github.com/rigelbuild/compass-operator/controllers/flow"
	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// report puts what was seen into the status. What was not looked at in this pass stays as it was: the conditions say that
// nobody could tell.
func report(s *scope) flow.Notes {
	status := &s.server.Status
	notes := flow.Notes{}
	if s.schema != nil {
		status.Schema = &v1alpha1.SchemaStatus{Version: int32(s.schema.Version), Latest: int32(s.schema.Latest)} //nolint:gosec // small
	}
	if s.nats != nil {
		status.NATS = &v1alpha1.NATSStatus{
			Version: s.nats.Version, Servers: int32(s.nats.Servers), //nolint:gosec // small
			SigningKeys: signingKeys(s.identity.keys.Signing[:], *s.nats),
		}
		if s.identity.external == nil {
			status.NATS.OperatorKey = s.identity.keys.Operator.Public()
		}
	}
	if s.looked {
		status.Tenants, status.Streams = flow.Rounded(s.tenants), s.streams
	}
	if s.deployed {
		status.AvailableServers = s.available
		status.Endpoint = backend.Endpoint(s.key, s.names.Server)
		notes[v1alpha1.ConditionServerAvailable] = flow.Note{Reason: v1alpha1.ReasonAvailable, Message: s.stuck}
	}
	if s.database != nil && s.database.AdminSuperuser {
		notes[v1alpha1.ConditionDatabaseReady] = flow.Note{
			Reason:  v1alpha1.ReasonApplied,
			Message: "the admin is a superuser, which is more than is needed: give a role with CREATEROLE and CREATEDB",
		}
	}
	return notes
}

// signingKeys tells what each key is for, and how many servers trust it where some do not.
func signingKeys(keys []fabric.Seed, seen backend.NATSSeen) map[string]string {
	out := map[string]string{}
	for i, role := range []string{"current", "next"} {
		if keys[i].IsZero() { // of somebody else's operator we have one
			continue
		}
		key := keys[i].Public()
		if n := seen.Trusted[key]; n < seen.Servers {
			role = fmt.Sprintf("%s, trusted by %d of %d servers", role, n, seen.Servers)
		}
		out[key] = role
	}
	return out
}
