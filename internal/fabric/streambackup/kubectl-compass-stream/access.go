package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/rigelbuild/compass-operator/api/v1alpha1"
	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/fabric/streambackup"
	"github.com/rigelbuild/compass-operator/internal/naming"
)

// options finds the NATS of a DeliveryStream, and makes a user that may save and restore this one stream for an hour.
func options(ctx context.Context, c client.Reader, key client.ObjectKey, now time.Time) (streambackup.Options, error) {
	o := streambackup.Options{Stream: key.Name}
	stream, server, secret := &v1alpha1.DeliveryStream{}, &v1alpha1.CompassServer{}, &corev1.Secret{}
	if err := get(ctx, c, "DeliveryStream", key, stream); err != nil {
		return o, err
	}
	at := client.ObjectKey{Namespace: key.Namespace, Name: stream.Spec.ServerRef.Name}
	if err := get(ctx, c, "CompassServer", at, server); err != nil {
		return o, err
	}
	names, err := naming.ServerChildrenOf(at.Name)
	if err != nil {
		return o, fmt.Errorf("CompassServer %s: %w", at, err)
	}
	if err := get(ctx, c, "Secret", client.ObjectKey{Namespace: at.Namespace, Name: names.Keys}, secret); err != nil {
		return o, err
	}
	// Keys that are lacking are made in memory alone, and are not those of COMPASS, which NATS then refuses.
	keys, _, err := fabric.CompleteKeys(secret.Data)
	if err != nil {
		return o, fmt.Errorf("Secret %s: %w", names.Keys, err)
	}
	user, err := fabric.NewUserSeed()
	if err != nil {
		return o, err
	}
	text, err := keys.Compass.BackupUser(user.Public(), key.Name, now)
	if err != nil {
		return o, err
	}
	o.Credentials = fabric.StaticCredentials(text, user, fabric.BackupInbox)
	o.URLs = []string{fmt.Sprintf("nats://%s.%s.svc:%d", names.NATS, at.Namespace, naming.NATSPort)}
	if x := server.ExternalNATS(); x != nil {
		o.URLs = x.URLs
		return o, authority(ctx, c, at.Namespace, x, &o)
	}
	return o, nil
}

// authority reads what verifies somebody else's NATS.
func authority(ctx context.Context, c client.Reader, namespace string, x *v1alpha1.ExternalNATSSpec, o *streambackup.Options) error {
	if x.CASecretRef == nil {
		return nil
	}
	secret := &corev1.Secret{}
	if err := get(ctx, c, "Secret", client.ObjectKey{Namespace: namespace, Name: x.CASecretRef.Name}, secret); err != nil {
		return err
	}
	o.CA = secret.Data["ca.crt"]
	return nil
}

func get(ctx context.Context, c client.Reader, kind string, key client.ObjectKey, into client.Object) error {
	switch err := c.Get(ctx, key, into); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no %s %s", kind, key)
	case err != nil:
		return fmt.Errorf("read %s %s: %w", kind, key, err)
	}
	return nil
}
