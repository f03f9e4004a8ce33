package fabric_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/jwt/v2"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/fabrictest"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// Holds REQ-212. Lessons operator 27: whatever subset of the keys was stored before a crash, the next start completes the same identity.
func TestKeysAreCompletedNeverReplaced(t *testing.T) {
	t.Parallel()
	_, all, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 3+2+(2+2)+(2+1) {
		t.Errorf("%d keys, want operator, two signing, and those of three accounts: %v", len(all), slices.Sorted(maps.Keys(all)))
	}
	if _, store, err := fabric.CompleteKeys(all); err != nil || store != nil {
		t.Errorf("complete keys: have to store %d, %v, want nothing", len(store), err)
	}
	for missing := range all {
		have := maps.Clone(all)
		delete(have, missing)
		_, store, err := fabric.CompleteKeys(have)
		if err != nil {
			t.Fatal(err)
		}
		for name := range have {
			if string(store[name]) != string(all[name]) {
				t.Errorf("without %s, %s was replaced", missing, name)
			}
		}
		if len(store) != len(all) || string(store[missing]) == string(all[missing]) {
			t.Errorf("without %s: %d to store", missing, len(store))
		}
	}
}

func TestBadKeysAreRefusedAndNotShown(t *testing.T) {
	t.Parallel()
	_, all, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string][]byte{
		"garbage": []byte("SOnotaseed"), "empty": {}, "another kind": all["sys.seed"],
	} {
		have := maps.Clone(all)
		have["operator.seed"] = text
		_, store, err := fabric.CompleteKeys(have)
		if !errors.Is(err, fabric.ErrConfig) || store != nil {
			t.Errorf("%s: got %v and %d to store, want ErrConfig and none", what, err, len(store))
		}
		if err != nil && len(text) > 0 && strings.Contains(err.Error(), string(text)) {
			t.Errorf("%s: the error shows the seed", what)
		}
	}
}

// Holds REQ-224 (no secret in logs): however a seed is printed, it does not show.
func TestSeedsDoNotShow(t *testing.T) {
	t.Parallel()
	keys, all, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "seed", keys.Operator, "keys", keys, "account", keys.Compass)
	marshaled, err := json.Marshal(keys)
	if err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprintf("%v %+v %#v %s %q %x %d", keys, keys, keys, keys.Operator, keys.Operator, keys.Operator, keys.Operator) +
		log.String() + string(marshaled)
	for name, seed := range all {
		if strings.Contains(shown, string(seed)) || strings.Contains(shown, fmt.Sprintf("%x", seed)) {
			t.Errorf("%s shows", name)
		}
	}
}

// The same input makes the same claims, whatever the order of maps: no drift against what an earlier pass signed.
func TestAccountsHaveNoDriftAgainstThemselves(t *testing.T) {
	t.Parallel()
	keys, _, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	tenant, _, err := fabric.CompleteTenantKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	build := func() []fabric.Account {
		return []fabric.Account{
			fabric.SystemAccount(keys, "ns/Main"), fabric.CompassAccount(keys, "ns/Main"), fabric.RunnersAccount(keys, "ns/Main"),
			fabric.TenantAccount(fabric.TenantAccountSpec{
				Tenant: fabrictest.TenantA, Keys: tenant, EventTap: true, Runners: true, Limits: fabric.Limits{Connections: 5, Subscriptions: 10, Payload: 100},
			}, keys.Compass, "ns/Main"),
		}
	}
	for range 5 {
		a, b := build(), build()
		for i := range a {
			text, err := a[i].Sign(keys.Signing[0])
			if err != nil {
				t.Fatal(err)
			}
			got, err := b[i].Drift(text, keys.Signing[0].Public())
			if err != nil || len(got) > 0 {
				t.Errorf("%s: drift %v, %v", a[i].Name, got, err)
			}
		}
	}
}

// A tenant's account is of constant size, has no JetStream and imports its own alone.
func TestTenantAccountClaims(t *testing.T) {
	t.Parallel()
	keys, _, err := fabric.CompleteKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	tenant, _, err := fabric.CompleteTenantKeys(nil)
	if err != nil {
		t.Fatal(err)
	}
	spec := fabric.TenantAccountSpec{Tenant: fabrictest.TenantA, Keys: tenant, EventTap: true, Runners: true}
	text, err := fabric.TenantAccount(spec, keys.Compass, owner).Sign(keys.Signing[1])
	if err != nil {
		t.Fatal(err)
	}
	c, err := jwt.DecodeAccountClaims(text)
	if err != nil {
		t.Fatal(err)
	}
	var vr jwt.ValidationResults
	c.Validate(&vr)
	if vr.IsBlocking(true) {
		t.Errorf("the claims are not valid: %v", vr.Errors())
	}
	if c.Limits.JetStreamLimits != (jwt.JetStreamLimits{}) || len(c.Exports) != 0 {
		t.Errorf("a tenant must have no JetStream and no exports: %+v %v", c.Limits.JetStreamLimits, c.Exports)
	}
	got := map[string]string{}
	for _, imp := range c.Imports {
		got[string(imp.Subject)] = string(imp.LocalSubject)
	}
	a := fabrictest.TenantA
	want := map[string]string{
		"compass.runner." + a + ".*.cmd": "compass.runner.$1.cmd", "compass.runner." + a + ".*.events": "compass.runner.$1.events",
		"compass.runner." + a + ".*.call": "compass.runner.$1.call", "compass.runner." + a + ".*.state.*": "compass.runner.$1.state.$2",
		"compass.bcast." + a + ".*": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("imports (-want +got)\n%s", diff)
	}
	bare := fabric.TenantAccount(fabric.TenantAccountSpec{Tenant: a, Keys: tenant}, keys.Compass, owner)
	if text, err = bare.Sign(keys.Signing[0]); err != nil {
		t.Fatal(err)
	}
	if c, err = jwt.DecodeAccountClaims(text); err != nil || len(c.Imports) != 0 {
		t.Errorf("a tenant that asked for nothing imports %v, %v", c.Imports, err)
	}
	if err := naming.ValidTenant(a); err != nil {
		t.Fatal(err)
	}
}

// Exports are private: an account that other hands signed gets nothing without our word (design section 6, External).
func TestExportsArePrivate(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	c.base(t)
	spec := c.tenant(t, fabrictest.TenantA)
	text, err := fabric.TenantAccount(spec, c.keys.Compass, owner).Sign(c.keys.Signing[0])
	if err != nil {
		t.Fatal(err)
	}
	claims, err := jwt.DecodeAccountClaims(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, imp := range claims.Imports {
		imp.Token = ""
	}
	stripped := c.signClaims(t, claims)
	if err := c.pushRaw(t, stripped); err == nil { // the resolver may store it; it must not work
		tap := issue(t, spec.Keys.Issuer(fabric.RoleTap), "")
		nc, err := c.dialAs(tap)
		if err != nil {
			return
		}
		defer nc.Close()
		sub, err := nc.SubscribeSync("compass.bcast.*.*")
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		f := c.fabric(t, c.standalone(t), nil)
		if err := f.Broadcast(t.Context(), fabrictest.TenantA, "presence", nil, nil); err != nil {
			t.Fatal(err)
		}
		flushAll(t, c)
		if n, _, err := sub.Pending(); err != nil || n > 0 {
			t.Errorf("an import without our word got %d messages, %v", n, err)
		}
	}
}
