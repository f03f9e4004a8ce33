package flow_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/controllers/flow"
)

// world is one object behind an API server that counts what is written to it.
type world struct {
	client client.Client
	frame  flow.Frame
	writes []string // status, meta
	events []string
	now    time.Time
	refuse error // of the next write
}

type scope struct {
	obj *v1alpha1.CompassTenant
	ran []string
}

type events struct{ w *world }

func (e events) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	e.w.events = append(e.w.events, kind+" "+reason+" "+fmt.Sprintf(note, args...))
}

func newWorld(t *testing.T, edit func(*v1alpha1.CompassTenant)) *world {
	t.Helper()
	w := &world{now: time.Date(2030, 5, 1, 12, 0, 0, 0, time.UTC)}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	obj := &v1alpha1.CompassTenant{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "acme", Generation: 1}}
	if edit != nil {
		edit(obj)
	}
	take := func() error {
		err := w.refuse
		w.refuse = nil
		return err
	}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(obj).WithStatusSubresource(obj).
		WithInterceptorFuncs(interceptor.Funcs{
			Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				if err := take(); err != nil {
					return err
				}
				w.writes = append(w.writes, "meta")
				return c.Patch(ctx, o, p, opts...)
			},
			SubResourcePatch: func(
				ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption,
			) error {
				if err := take(); err != nil {
					return err
				}
				w.writes = append(w.writes, sub)
				return c.SubResource(sub).Patch(ctx, o, p, opts...)
			},
		}).Build()
	w.frame = flow.Frame{
		Client: w.client, Events: events{w}, Now: func() time.Time { return w.now },
		Spread: func(d time.Duration) time.Duration { return d }, Resync: time.Hour, Poll: time.Minute,
	}
	return w
}

// plan is what the steps of a test do.
type plan struct {
	steps   []flow.Step[scope]
	removes []flow.Remove[scope]
	report  func(*scope) flow.Notes
	noLater time.Duration   // than this, if it is not zero
	ctx     context.Context //nolint:containedctx // of one pass
}

// pass is a reconcile as every kind has it.
func (w *world) pass(t *testing.T, p plan) (res reconcile.Result, err error) {
	t.Helper()
	ctx := p.ctx
	if ctx == nil {
		ctx = t.Context()
	}
	obj := &v1alpha1.CompassTenant{}
	if gerr := w.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "acme"}, obj); gerr != nil {
		if apierrors.IsNotFound(gerr) {
			return res, nil
		}
		t.Fatal(gerr)
	}
	if p.report == nil {
		p.report = func(*scope) flow.Notes { return nil }
	}
	s := &scope{obj: obj}
	f := flow.Begin(w.frame, obj, s, p.steps...)
	defer func() {
		if res, err = f.End(ctx, p.report, err); p.noLater > 0 {
			res = f.NoLater(res, p.noLater)
		}
	}()
	if f.Paused() {
		return res, nil
	}
	if f.Deleting() {
		return res, f.Teardown(ctx, p.removes...)
	}
	if err = f.EnsureFinalizer(ctx); err != nil {
		return res, err
	}
	return res, f.Steps(ctx)
}

func (w *world) read(t *testing.T) *v1alpha1.CompassTenant {
	t.Helper()
	obj := &v1alpha1.CompassTenant{}
	if err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "acme"}, obj); err != nil {
		t.Fatal(err)
	}
	return obj
}

func (w *world) gone(t *testing.T) bool {
	t.Helper()
	err := w.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "acme"}, &v1alpha1.CompassTenant{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err != nil
}

// shape is a condition without its time.
type shape struct {
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

func shapes(obj *v1alpha1.CompassTenant) map[string]shape {
	out := map[string]shape{}
	for _, c := range obj.Status.Conditions {
		out[c.Type] = shape{c.Status, c.Reason, c.Message}
	}
	return out
}

func step(condition string, err error, needs ...string) flow.Step[scope] {
	return flow.Step[scope]{Condition: condition, Needs: needs, Run: func(_ context.Context, s *scope) error {
		s.ran = append(s.ran, condition)
		return err
	}}
}

var errDown = errors.New("dial tcp: refused")
