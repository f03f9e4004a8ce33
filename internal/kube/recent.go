package kube

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Recent reads Secrets of other people that every object of a server refers to, each at most once in a while: a thousand
// objects that are looked at together need not ask a thousand times. It holds no more than was asked for lately.
type Recent struct {
	client.Reader
	After time.Duration // when a Secret is read again
	Now   func() time.Time

	mu   sync.Mutex
	seen map[client.ObjectKey]recent
}

type recent struct {
	secret *corev1.Secret // nil: there is none
	err    error
	at     time.Time
}

// Get answers for a Secret what was true a while ago at most; everything else it reads.
func (r *Recent) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	into, ok := obj.(*corev1.Secret)
	if !ok {
		return r.Reader.Get(ctx, key, obj, opts...)
	}
	r.mu.Lock()
	defer r.mu.Unlock() // who asks meanwhile waits for the one answer
	was, ok := r.seen[key]
	if !ok || r.Now().Sub(was.at) >= r.After {
		was = recent{secret: &corev1.Secret{}}
		if was.err = r.Reader.Get(ctx, key, was.secret, opts...); was.err != nil && !apierrors.IsNotFound(was.err) {
			return was.err
		}
		was.at = r.Now()
		r.keep(key, was)
	}
	if was.err == nil {
		was.secret.DeepCopyInto(into)
	}
	return was.err
}

func (r *Recent) keep(key client.ObjectKey, is recent) {
	if r.seen == nil {
		r.seen = map[client.ObjectKey]recent{}
	}
	for other, was := range r.seen {
		if is.at.Sub(was.at) >= r.After {
			delete(r.seen, other)
		}
	}
	r.seen[key] = is
}
