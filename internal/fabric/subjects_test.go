package fabric

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/jwt/v2"

	"github.com/rigelbuild/compass-operator/internal/naming"
)

var update = flag.Bool("update", false, "write the generated part of docs/SUBJECTS.md")

const (
	generatedBegin = "<!-- generated: begin -->\n"
	generatedEnd   = "<!-- generated: end -->\n"
)

// Holds REQ-033.
func TestSubjectsDocument(t *testing.T) {
	t.Parallel()
	path := filepath.Join("..", "..", "docs", "SUBJECTS.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(page), generatedBegin)
	old, tail, ok2 := strings.Cut(rest, generatedEnd)
	if !ok1 || !ok2 {
		t.Fatalf("%s has lost its marks", path)
	}
	want := rolesTable(t)
	if *update {
		if err := os.WriteFile(path, []byte(head+generatedBegin+want+generatedEnd+tail), 0o644); err != nil { //nolint:gosec // a page
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, old); diff != "" {
		t.Errorf("%s is stale; run go test ./internal/fabric -run Subjects -update (-want +got)\n%s", path, diff)
	}
}

func rolesTable(t *testing.T) string {
	t.Helper()
	var w strings.Builder
	w.WriteString("A role is a scoped signing key of its account: the account fixes what its users may do. `{{tag(x)}}` is filled in by the\n" +
		"server from the user's JWT, and validated before that is signed.\n\n| user | account | may publish | may subscribe |\n|---|---|---|---|\n")
	for _, r := range []struct {
		user, account string
		p             jwt.Permissions
	}{
		{"Server", naming.AccountCompass, permissionsOf(RoleServer)},
		{"worker of one stream", naming.AccountCompass, permissionsOf(RoleWorker)},
		{"operator", naming.AccountCompass, adminPermissions()},
		{"Runner", naming.AccountRunners + ", or its tenant's own", permissionsOf(RoleRunner)},
		{"tap of a tenant", "the tenant's own", permissionsOf(RoleTap)},
	} {
		fmt.Fprintf(&w, "| %s | %s | %s | %s |\n", r.user, r.account, subjectList(r.p.Pub, r.p.Resp), subjectList(r.p.Sub, nil))
	}
	keys, _, err := CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	tenant, _, err := CompleteTenantKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	const id = "t_00000000000000000000000000"
	spec := TenantAccountSpec{Tenant: id, Keys: tenant, EventTap: true, Runners: true}
	w.WriteString("\n| account | exports, to those who hold our word for it | imports from COMPASS, and calls it |\n|---|---|---|\n")
	for _, a := range []Account{
		CompassAccount(keys, "x"), RunnersAccount(keys, "x"), TenantAccount(spec, keys.Compass, "x"),
	} {
		name := strings.ReplaceAll(a.Name, id, "a tenant's own")
		fmt.Fprintf(&w, "| %s | %s | %s |\n", name, exportList(a.claims.Exports), strings.ReplaceAll(importList(a.claims.Imports), id, "<tenant>"))
	}
	return w.String()
}

func subjectList(p jwt.Permission, answers *jwt.ResponsePermission) string {
	var out []string
	for _, s := range p.Allow {
		out = append(out, "`"+s+"`")
	}
	if answers != nil {
		out = append(out, "one answer to each request that it got")
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, " ")
}

func exportList(in jwt.Exports) string {
	var out []string
	for _, e := range in {
		out = append(out, fmt.Sprintf("`%s` (%s)", e.Subject, e.Type))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, " ")
}

func importList(in jwt.Imports) string {
	var out []string
	for _, i := range in {
		local := string(i.LocalSubject)
		if local == "" {
			local = "the same"
		} else {
			local = "`" + local + "`"
		}
		out = append(out, fmt.Sprintf("`%s` as %s", i.Subject, local))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, "; ")
}
