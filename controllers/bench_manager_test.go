package controllers_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// process is a running manager.
type process struct {
	cmd     *exec.Cmd
	metrics string
	done    chan error
	stopped atomic.Bool
}

// start starts a manager that looks at everything anew so often.
func (w *bench) start(b *testing.B, resync time.Duration) *process {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	p := &process{metrics: "http://" + address + "/metrics", done: make(chan error, 1)}
	p.cmd = exec.CommandContext(b.Context(), w.binary, "-image=localhost/compass:dev", "-nats-image=localhost/nats:dev", "-leader-elect=false",
		"-namespaces="+w.namespace, "-metrics-bind-address="+address, "-health-probe-bind-address=0", "-resync="+resync.String(), "-log-level=error")
	p.cmd.Env = append(os.Environ(), "KUBECONFIG="+w.kube)
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	b.Cleanup(func() { p.stop(b) })
	for deadline := time.Now().Add(5 * time.Minute); ; pause(b, 100*time.Millisecond) {
		response, err := p.scrape(b)
		if err == nil {
			_ = response.Close()
			return p
		}
		if time.Now().After(deadline) {
			b.Fatalf("the manager does not answer: %v", err)
		}
	}
}

func (p *process) stop(b *testing.B) {
	b.Helper()
	if p.stopped.Swap(true) {
		return
	}
	_ = p.cmd.Process.Signal(os.Interrupt)
	if err := <-p.done; err != nil {
		b.Errorf("manager: %v", err)
	}
}

// rss is what the process holds, in MiB.
func (p *process) rss(b *testing.B) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, line := range strings.Split(string(text), "\n") {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			v, err := strconv.ParseFloat(strings.Fields(kb)[0], 64)
			if err != nil {
				b.Fatal(err)
			}
			return v / 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}

// scrape asks for the metrics.
func (p *process) scrape(b *testing.B) (io.ReadCloser, error) {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, p.metrics, http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// sum adds up the samples of a metric whose labels contain all parts.
func (p *process) sum(b *testing.B, metric string, parts ...string) float64 {
	b.Helper()
	response, err := p.scrape(b)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = response.Close() }()
	total := 0.0
	lines := bufio.NewScanner(response)
	for lines.Scan() {
		name, rest, ok := strings.Cut(lines.Text(), "{")
		if !ok || name != metric {
			continue
		}
		labels, value, _ := strings.Cut(rest, "} ")
		all := true
		for _, part := range parts {
			all = all && strings.Contains(labels, part)
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil && all {
			total += v
		}
	}
	return total
}

// writes to the API server, events among them.
func (p *process) writes(b *testing.B) float64 {
	b.Helper()
	total := 0.0
	for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
		total += p.sum(b, "rest_client_requests_total", `method="`+method+`"`)
	}
	return total
}

func (p *process) passes(b *testing.B) float64 {
	b.Helper()
	return p.sum(b, "controller_runtime_reconcile_total")
}

// told logs what the process has done so far.
func (p *process) told(b *testing.B, when string) {
	b.Helper()
	line := when + ":"
	for _, kind := range []string{"server", "tenant", "stream"} {
		line += fmt.Sprintf(" %s passes %.0f", kind, p.sum(b, "controller_runtime_reconcile_total", `controller="`+kind+`"`))
		for _, result := range []string{"error", "requeue"} { // at once again, or put off by a failure
			line += fmt.Sprintf(" %s %.0f", result, p.sum(b, "controller_runtime_reconcile_total", `controller="`+kind+`"`, `result="`+result+`"`))
		}
		line += ","
	}
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		line += fmt.Sprintf(" %s %.0f,", method, p.sum(b, "rest_client_requests_total", `method="`+method+`"`))
	}
	b.Log(line)
}

// quiet waits until nothing is written any more.
func (p *process) quiet(b *testing.B) {
	b.Helper()
	last, since := p.writes(b), time.Now()
	for time.Since(since) < 10*time.Second {
		pause(b, time.Second)
		if now := p.writes(b); now != last {
			last, since = now, time.Now()
		}
	}
}

// resyncs waits until so many more objects were looked at.
func (p *process) resyncs(b *testing.B, n int) {
	b.Helper()
	for until := p.passes(b) + float64(n); p.passes(b) < until; {
		pause(b, time.Second)
	}
}

func pause(b *testing.B, d time.Duration) {
	b.Helper()
	select {
	case <-time.After(d):
	case <-b.Context().Done():
		b.Fatal(b.Context().Err())
	}
}
