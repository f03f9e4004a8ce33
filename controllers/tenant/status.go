package tenant

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/flow"
)

// report puts what was seen into the status. What was not looked at in this pass stays as it was: the conditions say that
// nobody could tell.
func report(s *scope) flow.Notes {
	status := &s.tenant.Status
	if s.row != nil {
		status.Slug, status.TenantID, status.Stream = s.row.Slug, string(s.row.ID), s.row.Stream
	}
	if s.account != "" {
		status.Account = s.account
	}
	if s.token != nil {
		status.Secrets = v1alpha1.TenantSecrets{API: s.names.API}
		if s.sql {
			status.Secrets.SQL = s.names.SQL
		}
		if s.inNATS {
			status.Secrets.NATS = s.names.NATS
		}
		status.Rotation = rotationOf(s)
	}
	if u := s.usage; u != nil {
		status.Usage = &v1alpha1.TenantUsage{
			Messages: flow.Rounded(u.Messages), Owed: flow.Rounded(u.Owed), DeadLetters: flow.Rounded(u.DeadLetters),
		}
	}
	notes := flow.Notes{v1alpha1.ConditionDelivering: {Reason: v1alpha1.ReasonAvailable, Message: "carried by DeliveryStream " + status.Stream}}
	if s.home != nil {
		notes[v1alpha1.ConditionDatabaseReady] = flow.Note{
			Reason: v1alpha1.ReasonApplied, Message: fmt.Sprintf("in database %s of its own, at %s", s.home.Database, s.home.By),
		}
	}
	return notes
}

func rotationOf(s *scope) *v1alpha1.RotationStatus {
	out := &v1alpha1.RotationStatus{Last: metav1.NewTime(s.token.Since.Truncate(time.Second)), Asked: s.life.Asked}
	if s.life.Period > 0 {
		out.Next = new(metav1.NewTime(out.Last.Add(s.life.Period)))
	}
	return out
}
