package stream

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/store"
)

func streamOf(name string, age int, slugs ...string) v1alpha1.DeliveryStream {
	d := v1alpha1.DeliveryStream{ObjectMeta: metav1.ObjectMeta{
		Name: name, CreationTimestamp: metav1.NewTime(time.Date(2030, 1, 1, 0, 0, -age, 0, time.UTC)),
	}}
	d.Spec.Tenants = v1alpha1.TenantSelection{All: len(slugs) == 0, Names: slugs}
	return d
}

func selecting(name string, age int, key, value string) v1alpha1.DeliveryStream {
	d := streamOf(name, age)
	d.Spec.Tenants = v1alpha1.TenantSelection{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}}
	return d
}

func going(d v1alpha1.DeliveryStream) v1alpha1.DeliveryStream {
	d.DeletionTimestamp = &d.CreationTimestamp
	return d
}

func row(slug, with string) store.TenantRow {
	return store.TenantRow{ID: store.TenantID("t_" + slug), Slug: slug, Stream: with, Claim: 1}
}

// Holds REQ-208, REQ-237: who carries whom, decided from facts alone, in whatever order they come.
func TestDesirePlacements(t *testing.T) {
	t.Parallel()
	draining := row("a", "s")
	draining.Draining = true
	cases := map[string]struct {
		reason  string
		self    v1alpha1.DeliveryStream
		others  []v1alpha1.DeliveryStream
		tenants []store.TenantRow
		tagged  map[string]labels.Set
		want    plan
	}{
		"all takes who is free": {
			self: streamOf("s", 1), tenants: []store.TenantRow{row("a", ""), row("b", "s")},
			want: plan{mine: 1, take: []store.TenantRow{row("a", "")}},
		},
		"all leaves who is named": {
			reason: "every tenant that no other stream names",
			self:   streamOf("s", 1), others: []v1alpha1.DeliveryStream{streamOf("o", 0, "a")}, tenants: []store.TenantRow{row("a", ""), row("b", "")},
			want: plan{take: []store.TenantRow{row("b", "")}},
		},
		"a name beats all": {
			self: streamOf("s", 0, "a"), others: []v1alpha1.DeliveryStream{streamOf("rest", 1)}, tenants: []store.TenantRow{row("a", "rest")},
			want: plan{take: []store.TenantRow{row("a", "rest")}},
		},
		"the first claimer keeps": {
			self: streamOf("s", 1, "a"), others: []v1alpha1.DeliveryStream{streamOf("o", 0, "a")}, tenants: []store.TenantRow{row("a", "o")},
			want: plan{conflicts: []conflict{{"a", "o"}}},
		},
		"a claimer that is gone keeps nothing": {
			self: streamOf("s", 0, "a"), tenants: []store.TenantRow{row("a", "gone")},
			want: plan{take: []store.TenantRow{row("a", "gone")}},
		},
		"nor does one that goes": {
			self: streamOf("s", 0, "a"), others: []v1alpha1.DeliveryStream{going(streamOf("o", 1, "a"))}, tenants: []store.TenantRow{row("a", "o")},
			want: plan{take: []store.TenantRow{row("a", "o")}},
		},
		"a name that is nobody's": {
			self: streamOf("s", 0, "b", "a"), tenants: nil, want: plan{missing: []string{"a", "b"}},
		},
		"who is no longer named is let go": {
			self: streamOf("s", 0, "b"), tenants: []store.TenantRow{row("a", "s"), row("b", "s")},
			want: plan{mine: 1, release: []store.TenantRow{row("a", "s")}},
		},
		"or left to who wants it": {
			reason: "the other takes it, so that it is never with nobody",
			self:   streamOf("s", 0, "b"), others: []v1alpha1.DeliveryStream{streamOf("rest", 1)}, tenants: []store.TenantRow{row("a", "s"), row("b", "s")},
			want: plan{mine: 1},
		},
		"of two with all the older": {
			self: streamOf("young", 0), others: []v1alpha1.DeliveryStream{streamOf("old", 1)}, tenants: []store.TenantRow{row("a", "")},
			want: plan{},
		},
		"a label takes a tenant": {
			self: selecting("s", 0, "tier", "gold"), others: []v1alpha1.DeliveryStream{streamOf("rest", 1)},
			tenants: []store.TenantRow{row("a", "rest"), row("b", "rest"), row("c", "rest")},
			tagged:  map[string]labels.Set{"a": {"tier": "gold"}, "b": {"tier": "tin"}},
			want:    plan{take: []store.TenantRow{row("a", "rest")}},
		},
		"another label gives it away": {
			reason: "who wants it takes it; one edit, of the tenant alone, moves it",
			self:   selecting("s", 0, "tier", "gold"), others: []v1alpha1.DeliveryStream{selecting("o", 0, "tier", "tin")},
			tenants: []store.TenantRow{row("a", "s")}, tagged: map[string]labels.Set{"a": {"tier": "tin"}}, want: plan{},
		},
		"two labels are a conflict": {
			self: selecting("s", 0, "tier", "gold"), others: []v1alpha1.DeliveryStream{selecting("o", 0, "team", "x")},
			tenants: []store.TenantRow{row("a", "o")}, tagged: map[string]labels.Set{"a": {"tier": "gold", "team": "x"}},
			want: plan{conflicts: []conflict{{"a", "o"}}},
		},
		"an asked worker that is wanted back": {
			reason: "it was told to let go, so only a new claim makes it carry the tenant again",
			self:   streamOf("s", 0, "a"), tenants: []store.TenantRow{draining}, want: plan{take: []store.TenantRow{draining}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := append([]v1alpha1.DeliveryStream{c.self}, c.others...)
			for range 2 {
				got := desirePlacements(&c.self, claimsOf(all, c.tagged), c.tenants)
				if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(plan{}, conflict{}), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("%s:\n%s", c.reason, diff)
				}
				rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			}
		})
	}
}

// Whatever the facts are, at most one stream wants a tenant that nobody has yet.
func TestOneWants(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a seed that replays
	slugs := []string{"a", "b", "c"}
	for range 500 {
		var streams []v1alpha1.DeliveryStream
		for i := range 1 + rng.IntN(4) {
			var names []string
			for _, s := range slugs {
				if rng.IntN(3) == 0 {
					names = append(names, s)
				}
			}
			streams = append(streams, streamOf(string(rune('p'+i)), rng.IntN(3), names...))
		}
		c := claimsOf(streams, nil)
		for _, slug := range slugs {
			wanting := 0
			for _, s := range streams {
				if s.Spec.Tenants.All && c.wants(s.Name, slug) {
					wanting++
				}
			}
			if wanting > 1 {
				t.Fatalf("%d streams with all want %s: %+v", wanting, slug, streams)
			}
		}
	}
}

// Holds REQ-219: with many streams only those are looked at again that a change could matter to.
func TestRivals(t *testing.T) {
	t.Parallel()
	a, b, ab, rest, gold := streamOf("a", 0, "a"), streamOf("b", 0, "b"), streamOf("ab", 0, "a", "b"), streamOf("rest", 0), selecting("gold", 0, "tier", "gold")
	for _, c := range []struct {
		one, other v1alpha1.DeliveryStream
		want       bool
	}{{a, b, false}, {a, ab, true}, {ab, b, true}, {a, rest, true}, {gold, b, true}, {a, a, true}} {
		if got := Rivals(&c.one, &c.other); got != c.want {
			t.Errorf("%s and %s: %v", c.one.Name, c.other.Name, got)
		}
	}
	for slug, want := range map[string]bool{"a": true, "c": false} {
		if MayClaim(&a, slug, nil) != want {
			t.Errorf("%s: want %v", slug, want)
		}
	}
	if !MayClaim(&rest, "c", nil) || !MayClaim(&gold, "c", labels.Set{"tier": "gold"}) || MayClaim(&gold, "c", labels.Set{"tier": "tin"}) {
		t.Error("all, or a selector, claims wrongly")
	}
}
