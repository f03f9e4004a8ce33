package fabric

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/jwt/v2"
)

// Drift says in which fields a server's copy differs from the account, and by whom it should be signed. No drift means
// that pushing it again would change nothing.
func (a Account) Drift(copyText, signer string) ([]string, error) {
	c, err := jwt.DecodeAccountClaims(copyText)
	if err != nil {
		return nil, fmt.Errorf("decode account JWT: %w", err)
	}
	var d drift
	d.note("issuer", c.Issuer == signer)
	d.note("name", c.Name == a.claims.Name)
	d.note("owner", sameSet(c.Tags, a.claims.Tags))
	d.note("limits", same(c.Limits, a.claims.Limits))
	d.note("exports", same(sortedExports(c.Exports), sortedExports(a.claims.Exports)))
	d.note("imports", a.sameImports(c))
	d.note("signingKeys", sameKeys(c.SigningKeys, a.claims.SigningKeys))
	d.note("revocations", maps.Equal(c.Revocations, a.claims.Revocations))
	d.note("defaultPermissions", same(c.DefaultPermissions, a.claims.DefaultPermissions))
	return d, nil
}

// owned reports whether a copy carries our mark.
func owned(copyText, owner string) bool {
	c, err := jwt.DecodeAccountClaims(copyText)
	return err == nil && slices.Contains(c.Tags, ownerTag(owner))
}

// managerOfAccount is who else says in the tags of a copy that it manages the account: another CompassServer, or whoever set
// managed-by.
func managerOfAccount(copyText string) string {
	c, err := jwt.DecodeAccountClaims(copyText)
	if err != nil {
		return ""
	}
	for _, tag := range slices.Sorted(slices.Values(c.Tags)) {
		if server, ok := strings.CutPrefix(tag, ownerTag("")); ok {
			return "CompassServer " + server
		}
		if name, ok := strings.CutPrefix(tag, "managed-by:"); ok {
			return name
		}
	}
	return ""
}

// same compares by what goes over the wire, so that an empty list and none are alike.
func same(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func sortedExports(in jwt.Exports) jwt.Exports {
	out := slices.Clone(in)
	slices.SortFunc(out, func(a, b *jwt.Export) int { return strings.Compare(string(a.Subject), string(b.Subject)) })
	return out
}

// sameImports compares everything but the bytes of the tokens, which differ by their time alone; what a token says is
// compared.
func (a Account) sameImports(have *jwt.AccountClaims) bool {
	key := func(imp *jwt.Import) string {
		bare := *imp
		bare.Token = ""
		text, _ := json.Marshal(bare) // a struct of strings
		return string(text)
	}
	want := map[string]grant{}
	for i, imp := range a.claims.Imports {
		want[key(imp)] = a.grants[i]
	}
	for _, imp := range have.Imports {
		g, ok := want[key(imp)]
		if !ok || !g.grants(imp.Token, have.Subject) {
			return false
		}
	}
	return len(have.Imports) == len(want)
}

func (g grant) grants(token, importer string) bool {
	c, err := jwt.DecodeActivationClaims(token)
	return err == nil && c.Subject == importer && string(c.ImportSubject) == g.subject && c.ImportType == g.kind &&
		c.IssuerAccount == g.exporter && c.Issuer == g.signer.Public()
}

func sameKeys(a, b jwt.SigningKeys) bool {
	return maps.EqualFunc(a, b, func(x, y jwt.Scope) bool { return same(x, y) })
}
