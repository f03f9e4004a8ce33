package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/rigelbuild/compass-operator/internal/fabric"
	"github.com/rigelbuild/compass-operator/internal/naming"
	"github.com/rigelbuild/compass-operator/internal/telemetry"
)

// The figures as Prometheus writes them: dots become underscores, units and _total are added.
const (
	failuresFigure = "compass_delivery_fabric_publish_failures_total"
	hopFigure      = "compass_delivery_hop_duration_seconds"
)

// measures holds a process to what it must show: the failures of publishing, be they none, and the hops that it ends. It
// posts until all were seen: where an ack overtakes the Runner's word that it holds a message, nobody measures that word.
func measures(tb testing.TB, name, address string, post func(words string), hops ...string) {
	tb.Helper()
	posts := 0
	await(tb, name+" measures its hops", func() string {
		posts++
		post(fmt.Sprintf("for %s %d", name, posts))
		text := page(tb, "http://"+address+"/metrics")
		if !strings.Contains(text, "\n"+failuresFigure) {
			return "no " + failuresFigure
		}
		for _, hop := range hops {
			label := telemetry.AttrHop + `="` + hop + `"`
			if figure(tb, text, hopFigure+"_count", label) < 1 || figure(tb, text, hopFigure+"_sum", label) <= 0 {
				return "no time of hop " + hop
			}
		}
		return ""
	})
}

// Every process shows what it measures, under the names that dashboards know.
//
// Holds REQ-012: the counter of what publishing gave up is there before the first failure, in every process.
func TestEveryProcessMeasures(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server("server")
	w := c.worker("worker 1").serves()
	box := c.box(s)
	channel := s.api.channel(t, "general")
	s.api.start(t, s.api.agent(t, "witness", channel))
	post := func(words string) { box.record.await(s.api.post(t, channel, words).GetId(), 1) }
	measures(t, "the Server", s.metrics, post, telemetry.HopCommit, telemetry.HopPublish, telemetry.HopAck)
	measures(t, "the worker", w.metrics, post, telemetry.HopHint, telemetry.HopDrain, telemetry.HopDispatch, telemetry.HopTaken)
	measures(t, "the Runner", box.listening("metrics and health"), post)
	for name, n := range map[string]int{"the Server": s.nats.connections(), "the worker": w.nats.connections(), "the Runner": box.nats.connections()} {
		if n != 1 {
			t.Errorf("%s has %d connections to the broker: want 1", name, n)
		}
	}
}

// Posting and delivery go through one connection in a process that does both.
//
// Holds REQ-063.
func TestOneFabricServesPostingAndDelivery(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	s := h.start("--nats-listen", "127.0.0.1:0")
	channel := s.api.channel(t, "general")
	s.api.start(t, s.api.agent(t, "echo", channel))
	s.api.post(t, channel, "hello")
	s.api.settled(t)
	mine := 0
	for _, name := range connections(t, h, s.nats) {
		if name == "compass-standalone" {
			mine++
		}
	}
	if mine != 1 {
		t.Errorf("the process has %d connections beside its Runner's: want 1", mine)
	}
	post := func(words string) { s.api.post(t, channel, words); s.api.settled(t) }
	measures(t, "standalone", s.metrics, post, telemetry.HopCommit, telemetry.HopPublish, telemetry.HopHint, telemetry.HopDrain,
		telemetry.HopDispatch, telemetry.HopTaken, telemetry.HopAck)
}

// connections asks a standalone process's broker, as its operator, for the names of its connections.
func connections(t *testing.T, h *home, url string) (names []string) {
	t.Helper()
	seeds, err := filepath.Glob(filepath.Join(h.data(), "nats", "keys", "*.seed"))
	must(t, err)
	files := map[string][]byte{}
	for _, file := range seeds {
		files[filepath.Base(file)], err = os.ReadFile(file)
		must(t, err)
	}
	keys, lacking, err := fabric.CompleteKeys(files)
	must(t, err)
	if lacking != nil {
		t.Fatal("the folder of keys is not complete")
	}
	key, err := fabric.NewUserSeed()
	must(t, err)
	user, err := keys.System.AdminUser(key.Public(), naming.AccountSystem)
	must(t, err)
	conn, err := nats.Connect(url, nats.UserJWT(func() (string, error) { return user, nil }, key.Sign))
	must(t, err)
	defer conn.Close()
	answer, err := conn.Request("$SYS.REQ.SERVER.PING.CONNZ", nil, patience)
	must(t, err)
	var list struct {
		Data struct {
			Connections []struct{ Name string }
		}
	}
	must(t, json.Unmarshal(answer.Data, &list))
	for _, c := range list.Data.Connections {
		names = append(names, c.Name)
	}
	return names
}
