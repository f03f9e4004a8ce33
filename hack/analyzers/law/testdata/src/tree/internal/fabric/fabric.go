package fabric

import "context"

type EventRef struct{ RowID string }

type Fabric struct{}

func (f *Fabric) Broadcast(ctx context.Context, tenant, event string, envelope []byte, header map[string]string) error {
	return nil
}

func (f *Fabric) Again(ctx context.Context) error { return f.Broadcast(ctx, "", "", nil, nil) }

func (f *Fabric) Publish(ctx context.Context, subject string, ref EventRef) error { return nil }

type Publisher struct{ f *Fabric }

func (p *Publisher) Enqueue(ctx context.Context, ref EventRef) error {
	return p.f.Publish(ctx, "", ref)
}
