package main

import (
	"context"

	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/fabric"
)

// lines carry words to one connection over the fabric.
type lines struct{ fabric *fabric.Fabric }

// The headers of a word.
const (
	wordTenant  = "Compass-Tenant"
	wordAccount = "Compass-Account"
)

func (l lines) Tell(ctx context.Context, connection string, w edge.Word) error {
	return l.fabric.NotifyClient(ctx, connection, fabric.Note{
		Event: w.Event, Header: map[string]string{wordTenant: w.Tenant, wordAccount: w.Account},
	})
}

func (l lines) Hear(ctx context.Context, connection string, fn func(edge.Word)) (func(), error) {
	return l.fabric.HearClient(ctx, connection, func(_ context.Context, n fabric.Note) {
		fn(edge.Word{Event: n.Event, Tenant: n.Header[wordTenant], Account: n.Header[wordAccount]})
	})
}
