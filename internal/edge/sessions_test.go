package edge_test

import (
	"time"

	compassv1 "github.com/rigelbuild/compass-operator/api/proto/compass/v1"
	"github.com/rigelbuild/compass-operator/internal/comms"
	"github.com/rigelbuild/compass-operator/internal/edge"
	"github.com/rigelbuild/compass-operator/internal/hub"
)

// withSessions mounts the hub, as a Server does.
func withSessions(p *parts) {
	c, ok := p.Comms.(*comms.Comms)
	if !ok {
		panic("the hub needs the real comms")
	}
	h, err := hub.New(hub.Options{
		Store: p.world.Store, Comms: c, Emitter: p.emitter, IDs: p.world.IDs, Caller: edge.Caller, Now: time.Now,
	})
	if err != nil {
		panic(err)
	}
	p.Sessions, p.Runners = h.SessionService(), h.RunnerService()
}

func resumeFrom(channels ...string) *compassv1.SubscribeCommsRequest {
	resume := map[string]int64{}
	for _, c := range channels {
		resume[c] = 0
	}
	return &compassv1.SubscribeCommsRequest{Resume: resume}
}
