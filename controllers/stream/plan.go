package stream

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
	"github.com/rigelbuild/compass-operator/internal/store"
)

// plan is what has to become of the placements so that one stream carries whom it should.
type plan struct {
	mine      int               // tenants that it carries already
	take      []store.TenantRow // to be handed to it by whom they are with, or nobody
	stay      []string          // to be taken once the queue is there
	release   []store.TenantRow // to be let go of: nobody wants them
	conflicts []conflict        // wanted, and rightly with somebody else
	missing   []string          // named, and not there
}

type conflict struct{ slug, holder string }

// desirePlacements is pure. A stream wants a tenant that it names or selects, and, with all, every tenant that no other
// stream names or selects. Whoever carries a tenant and still wants it keeps it.
func desirePlacements(self *v1alpha1.DeliveryStream, claims claims, tenants []store.TenantRow) plan { //nolint:gocyclo // one case for each way that a tenant is claimed
	var p plan
	there := map[string]bool{}
	for _, t := range tenants {
		there[t.Slug] = true
		switch wanted := claims.wants(self.Name, t.Slug); {
		case wanted && t.Stream == self.Name && !t.Draining:
			p.mine++
		case wanted && t.Stream != self.Name && claims.wants(t.Stream, t.Slug):
			if claims.names(self.Name, t.Slug) {
				p.conflicts = append(p.conflicts, conflict{t.Slug, t.Stream})
			}
		case wanted:
			p.take = append(p.take, t)
		case t.Stream == self.Name && !claims.wantedByAnybody(t.Slug):
			p.release = append(p.release, t)
		}
	}
	for _, slug := range self.Spec.Tenants.Names {
		if !there[slug] {
			p.missing = append(p.missing, slug)
		}
	}
	slices.Sort(p.missing)
	return p
}

// stayWithOthers is for a stream whose queue is not there: whom another stream carries is served, and would not be here.
func (p *plan) stayWithOthers() {
	p.take = slices.DeleteFunc(p.take, func(t store.TenantRow) bool {
		if t.Stream == "" {
			return false
		}
		p.stay = append(p.stay, t.Slug)
		return true
	})
	slices.Sort(p.stay)
}

// claims are what the streams of one server ask for. One that is being deleted asks for nothing.
type claims struct {
	all   []string                   // streams with all, oldest first
	named map[string]map[string]bool // slug → streams that name or select it
}

// claimsOf judges the streams of one server. tagged are the labels of each tenant that has a CompassTenant, by its slug.
func claimsOf(streams []v1alpha1.DeliveryStream, tagged map[string]labels.Set) claims {
	c := claims{named: map[string]map[string]bool{}}
	var all []*v1alpha1.DeliveryStream
	for i := range streams {
		switch s := &streams[i]; {
		case !s.DeletionTimestamp.IsZero():
		case s.Spec.Tenants.All:
			all = append(all, s)
		default:
			for _, slug := range append(selected(s.Spec.Tenants.Selector, tagged), s.Spec.Tenants.Names...) {
				if c.named[slug] == nil {
					c.named[slug] = map[string]bool{}
				}
				c.named[slug][s.Name] = true
			}
		}
	}
	slices.SortFunc(all, func(a, b *v1alpha1.DeliveryStream) int {
		if n := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); n != 0 {
			return n
		}
		return strings.Compare(a.Name, b.Name)
	})
	for _, s := range all {
		c.all = append(c.all, s.Name)
	}
	return c
}

// selected are the slugs whose labels match. A selector that cannot be read matches nobody; its own stream says so.
func selected(selector *metav1.LabelSelector, tagged map[string]labels.Set) []string {
	match, err := metav1.LabelSelectorAsSelector(selector)
	if selector == nil || err != nil {
		return nil
	}
	var out []string
	for slug, set := range tagged {
		if match.Matches(set) {
			out = append(out, slug)
		}
	}
	return out
}

func (c claims) names(stream, slug string) bool { return c.named[slug][stream] }

// wants: of several streams with all, the oldest takes what nobody has.
func (c claims) wants(stream, slug string) bool {
	if len(c.named[slug]) > 0 {
		return c.names(stream, slug)
	}
	return len(c.all) > 0 && c.all[0] == stream
}

func (c claims) wantedByAnybody(slug string) bool { return len(c.named[slug]) > 0 || len(c.all) > 0 }

// mustBeFirst refuses a stream with all that is not the oldest of them.
func (c claims) mustBeFirst(self *v1alpha1.DeliveryStream) error {
	if !self.Spec.Tenants.All || len(c.all) == 0 || c.all[0] == self.Name {
		return nil
	}
	return fault.Waiting(v1alpha1.ReasonTenantConflict,
		fmt.Sprintf("DeliveryStream %s carries all tenants already and is older: name tenants in this one, or delete one of the two", c.all[0]))
}

// MayClaim reports whether a stream could want a tenant of that slug and those labels.
func MayClaim(d *v1alpha1.DeliveryStream, slug string, set labels.Set) bool {
	t := d.Spec.Tenants
	if t.All || slices.Contains(t.Names, slug) {
		return true
	}
	match, err := metav1.LabelSelectorAsSelector(t.Selector)
	return t.Selector != nil && err == nil && match.Matches(set)
}

// Rivals reports whether what one stream asks for could change what the other carries.
func Rivals(one, other *v1alpha1.DeliveryStream) bool {
	wide := func(d *v1alpha1.DeliveryStream) bool { return d.Spec.Tenants.All || d.Spec.Tenants.Selector != nil }
	if one.Name == other.Name || wide(one) || wide(other) {
		return true
	}
	return slices.ContainsFunc(one.Spec.Tenants.Names, func(slug string) bool { return slices.Contains(other.Spec.Tenants.Names, slug) })
}
