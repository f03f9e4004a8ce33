package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fault"
)

// refSize is about what one reference takes in a stream, with its headers.
const refSize = 512

// admit sees that there is to be a queue, and room for it; once per pass.
func (r *Reconciler) admit(ctx context.Context, s *scope) error {
	if s.admitted {
		return nil
	}
	if err := r.resolve(ctx, s); err != nil {
		return err
	}
	if err := s.mustBeFirst(ctx); err != nil {
		return err
	}
	if n := s.spec.Replicas; s.at.Servers > 0 && n > s.at.Servers {
		return fault.Waiting(v1alpha1.ReasonInvalidSpec, fmt.Sprintf("spec.stream.replicas is %d, and NATS has servers: %d: lower it, or give NATS more",
			n, s.at.Servers))
	}
	err := r.mustFit(ctx, s)
	s.admitted = err == nil
	return err
}

// mustBeFirst: a second stream with all has nobody to deliver for, and gets no queue and no worker.
func (s *scope) mustBeFirst(ctx context.Context) error {
	if !s.stream.Spec.Tenants.All {
		return nil
	}
	siblings, err := s.siblings(ctx)
	if err != nil {
		return err
	}
	return claimsOf(siblings, nil).mustBeFirst(s.stream)
}

// mustFit: JetStream reserves what a stream may hold, and refuses one for which the volume has no room left.
func (r *Reconciler) mustFit(ctx context.Context, s *scope) error {
	if s.server.ExternalNATS() != nil {
		return nil // how much there is only its owner knows
	}
	siblings, err := s.siblings(ctx)
	if err != nil {
		return err
	}
	return fits(s.stream, siblings, s.server.Spec.NATS.Managed.Storage.Size)
}

// siblings are the streams of the same server, this one among them; they are listed once per pass and not to be changed.
func (s *scope) siblings(ctx context.Context) ([]v1alpha1.DeliveryStream, error) {
	if s.listed != nil {
		return s.listed, nil
	}
	list := &v1alpha1.DeliveryStreamList{}
	if err := s.kids.Client.List(ctx, list, client.MatchingFields{IndexServer: ServerOf(s.stream)}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fault.Transient(v1alpha1.ReasonReconcileFailed, fmt.Errorf("list streams: %w", err))
	}
	s.listed = list.Items
	return s.listed, nil
}

// fits is pure. Older streams have their room first, but for those that were refused it themselves.
func fits(self *v1alpha1.DeliveryStream, siblings []v1alpha1.DeliveryStream, volume resource.Quantity) error {
	own := holds(self)
	all, before := own.DeepCopy(), []string{}
	for i := range siblings {
		if other := &siblings[i]; other.UID != self.UID && other.DeletionTimestamp.IsZero() && older(other, self) && !refused(other) {
			room := holds(other)
			all.Add(room)
			before = append(before, other.Name+" "+room.String())
		}
	}
	slices.Sort(before)
	words := fmt.Sprintf("spec.stream.maxBytes and spec.deadLetter.maxBytes are %s together", own.String())
	switch {
	case own.Cmp(volume) > 0:
		return fault.Terminal(v1alpha1.ReasonInvalidSpec, errors.New(words+", more than the "+volume.String()+" of the volume of NATS: lower them"))
	case all.Cmp(volume) > 0:
		return fault.Waiting(v1alpha1.ReasonInvalidSpec, words+", with those of older DeliveryStreams ("+list(before)+") "+all.String()+
			", more than the "+volume.String()+" of the volume of NATS: lower them here or there")
	}
	return nil
}

// refused: a stream for which there is no room, or nothing to deliver, takes none.
func refused(d *v1alpha1.DeliveryStream) bool {
	queue := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.ConditionStreamReady)
	return queue != nil && queue.Status == metav1.ConditionFalse &&
		(queue.Reason == v1alpha1.ReasonInvalidSpec || queue.Reason == v1alpha1.ReasonTenantConflict)
}

func holds(d *v1alpha1.DeliveryStream) resource.Quantity {
	sum := d.Spec.Stream.MaxBytes.DeepCopy()
	sum.Add(d.Spec.DeadLetter.MaxBytes)
	return sum
}

func older(a, b *v1alpha1.DeliveryStream) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// crowded says, of a stream in which a few tenants with everything they may have waiting leave no room for the others, how
// many fit. A full stream refuses references of everybody; they are swept up later, so it costs time and no message.
func crowded(d *v1alpha1.DeliveryStream, tenants int) string {
	room := d.Spec.Stream.MaxBytes.Value() / refSize / max(d.Spec.Stream.PerTenant.MaxMessages, 1)
	if int64(tenants) <= room {
		return ""
	}
	return fmt.Sprintf("full queues of %d tenants fill the stream for everybody: raise spec.stream.maxBytes, or lower "+
		"spec.stream.perTenant.maxMessages", max(room, 1))
}
