package edge_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/rigelbuild/compass-operator/internal/store"
)

// fill makes a request of a procedure as JSON: every field that names a thing gets the id for it, the rest what is valid.
// It fails the test for a field that it does not know, so that a new one is covered or said to name nothing.
func fill(t *testing.T, m protoreflect.MessageDescriptor, ids map[string]string) (body []byte, names bool) {
	t.Helper()
	out := map[string]any{}
	for i := range m.Fields().Len() {
		field := m.Fields().Get(i)
		name := string(field.Name())
		switch id, known := ids[name]; {
		case known:
			out[name], names = id, true
		case name == "blocks":
			out[name] = []any{map[string]any{"text": "x"}}
		case name == "filter":
			inner, _ := fill(t, field.Message(), ids)
			out[name] = json.RawMessage(inner)
		case name == "resume", name == "append", name == "dry_run", name == "after_rev", name == "page_size", name == "page_token",
			name == "include_ended", name == "display_name", name == "wake", name == "fleet":
			// names nothing of anybody
		case name == "client_id", name == "text":
			out[name] = "probe"
		case name == "name", name == "handle", name == "slug", name == "admin_handle":
			out[name] = "probe"
		case name == "kind":
			out[name] = "ACCOUNT_KIND_PERSON"
		case name == "role":
			out[name] = "ROLE_MEMBER"
		default:
			t.Errorf("%s.%s: say here what it names", m.FullName(), name)
		}
	}
	body, err := json.Marshal(out)
	must(t, err)
	return body, names
}

// Holds REQ-090, REQ-107 (B38: with tenant B's admin token and tenant A's ids every procedure answers as it does for ids
// that nobody has, and changes nothing of A's).
func TestForeignIsUnknown(t *testing.T) {
	t.Parallel()
	f := newFixture(t, withSessions)
	a, b := f.Tenant(t, "acme"), f.Tenant(t, "rival")
	ada, bot := a.Person(t, "ada"), a.Agent(t, "bot")
	tokenID, _ := a.TokenOf(t, ada)
	channel := a.Channel(t, "secret-plans", ada, bot)
	ask, _, _, err := f.Store.AppendAsk(a.Ctx, a.Message(ada, channel, "secret question"))
	must(t, err)
	session := a.Session(t, bot)
	f.Exec(t, `insert into compass.dead_letters (tenant_id, message_id, recipient_id, channel_id, pos, attempts, reason, first_unix_ms)
		select tenant_id, id, $1, channel_id, pos, 5, 'Rejected', 1 from compass.messages`, bot.ID)

	unknownSession, err := f.IDs.Session(string(a.ID))
	must(t, err)
	foreign := map[string]string{
		"channel_id": channel.ID, "message_id": ask.ID, "ask_id": ask.ID, "account_id": ada.ID, "agent_id": bot.ID,
		"recipient_id": bot.ID, "session_id": session.ID, "token_id": tokenID, "tenant": string(a.ID),
	}
	unknown := map[string]string{
		"channel_id": f.IDs.Channel(), "message_id": f.IDs.Message(), "ask_id": f.IDs.Message(), "account_id": f.IDs.Account(),
		"agent_id": f.IDs.Account(), "recipient_id": f.IDs.Account(), "session_id": unknownSession, "token_id": f.IDs.TokenID(),
		"tenant": f.IDs.Tenant(),
	}
	own := maps.Clone(foreign) // A's things, without naming the tenant
	own["tenant"] = ""
	before := snapshot(t, f, a.ID)
	all := procedures(t)
	for _, procedure := range slices.Sorted(maps.Keys(all)) {
		m := all[procedure]
		if m.IsStreamingServer() {
			continue // TestForeignStream
		}
		body, names := fill(t, m.Input(), foreign)
		got := f.raw(t, b.Token, procedure, body)
		body, _ = fill(t, m.Input(), unknown)
		want := f.raw(t, b.Token, procedure, body)
		if names && got != want {
			t.Errorf("%s: foreign answered %s, unknown %s", procedure, got, want)
		}
		if names && !strings.Contains(got, `"not_found"`) && !strings.Contains(got, `"permission_denied"`) {
			t.Errorf("%s: foreign answered %s, want not_found", procedure, got)
		}
		body, _ = fill(t, m.Input(), own)
		bare := f.raw(t, b.Token, procedure, body)
		for _, answer := range []string{got, bare} {
			for what, id := range foreign {
				if strings.Contains(answer, id) || strings.Contains(answer, "secret") {
					t.Errorf("%s answers with A's %s: %s", procedure, what, answer)
				}
			}
		}
	}
	if after := snapshot(t, f, a.ID); after != before {
		t.Errorf("something of A's changed:\nbefore %s\nafter  %s", before, after)
	}
}

// snapshot is everything that a tenant has, as text.
func snapshot(t *testing.T, f *fixture, tenant store.TenantID) string {
	t.Helper()
	var out []string
	for _, table := range f.Strings(t, `select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid
		where c.relnamespace = 'compass'::regnamespace and c.relkind = 'r' and a.attname = 'tenant_id' order by 1`) {
		rows := f.Strings(t, fmt.Sprintf(`select x::text from compass.%s x where x.tenant_id = $1 order by 1`, table), tenant)
		out = append(out, table+": "+strings.Join(rows, " | "))
	}
	return strings.Join(out, "\n")
}

// Holds REQ-235 (B2, over the wire: a stream that asks for another tenant's channel is told nothing of it).
func TestForeignStream(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.Tenant(t, "acme"), f.Tenant(t, "rival")
	theirs, ours := a.Channel(t, "a"), b.Channel(t, "b")
	a.Post(t, a.Admin, theirs, "secret")
	stream, err := f.messages(b.Token).SubscribeComms(t.Context(), request(resumeFrom(theirs.ID, ours.ID)))
	must(t, err)
	defer func() { _ = stream.Close() }()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	a.Post(t, a.Admin, theirs, "secret too")
	probe := b.Post(t, b.Admin, ours, "probe")
	for stream.Receive() {
		m := stream.Msg().GetMessage().GetMessage()
		if m.GetId() == probe.ID {
			return
		}
		if stream.Msg().GetHeartbeat() == nil {
			t.Fatalf("told %v", stream.Msg())
		}
	}
	t.Fatal(stream.Err())
}
