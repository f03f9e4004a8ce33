package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// patience bounds a hang, not a duration: a loaded machine must not fail a test.
	patience = 90 * time.Second
	glance   = 20 * time.Millisecond
)

// await polls until cond answers "", and fails with its last answer when patience ends.
func await(tb testing.TB, what string, cond func() string) {
	tb.Helper()
	hang := time.NewTimer(patience)
	defer hang.Stop()
	look := time.NewTicker(glance)
	defer look.Stop()
	for {
		why := cond()
		if why == "" {
			return
		}
		select {
		case <-look.C:
		case <-hang.C:
			tb.Fatalf("never: %s: %s", what, why)
		}
	}
}

// unless is the answer of a condition: "" or why not.
func unless(ok bool, format string, args ...any) string {
	if ok {
		return ""
	}
	return fmt.Sprintf(format, args...)
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// secrets are what no process may show: in its log or output, its arguments or its environment.
type secrets struct {
	mu   sync.Mutex
	text map[string]string // secret → what it is
}

func (s *secrets) add(what, secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text == nil {
		s.text = map[string]string{}
	}
	if secret = strings.TrimSpace(secret); secret != "" {
		s.text[secret] = what
	}
}

// shown lists what of it is in a text.
func (s *secrets) shown(text []byte) (found []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for secret, what := range s.text {
		if bytes.Contains(text, []byte(secret)) {
			found = append(found, what)
		}
	}
	return found
}

// process is one running program. It ends with the test at the latest, killed.
type process struct {
	tb      testing.TB
	name    string
	secrets *secrets
	out     string // file
	log     string // file
	cmd     *exec.Cmd
	exited  chan struct{}
	world   []byte // its arguments and environment, as everybody on the machine sees them
}

// bind makes the kernel kill the process when this one dies in any way: it signals a child when the thread that started it
// ends, so start keeps that thread.
func (p *process) bind() { p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// launch starts the program with arguments.
func launch(tb testing.TB, known *secrets, name string, args ...string) *process {
	tb.Helper()
	return launchOf(tb, program, known, name, args...)
}

// launchOf starts another build of it.
func launchOf(tb testing.TB, program string, known *secrets, name string, args ...string) *process {
	tb.Helper()
	dir := tb.TempDir()
	p := &process{tb: tb, name: name, secrets: known, out: filepath.Join(dir, "out"), log: filepath.Join(dir, "log"), exited: make(chan struct{})}
	path, err := filepath.Abs(program)
	must(tb, err)
	p.cmd = exec.CommandContext(tb.Context(), path, args...)
	p.cmd.Dir = dir
	p.cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + dir, "TMPDIR=" + dir}
	p.bind()
	stdout, err := os.Create(p.out)
	must(tb, err)
	defer stdout.Close()
	stderr, err := os.Create(p.log)
	must(tb, err)
	defer stderr.Close()
	p.cmd.Stdout, p.cmd.Stderr = stdout, stderr
	must(tb, p.start())
	tb.Cleanup(func() {
		p.kill()
		p.judge()
	})
	return p
}

func (p *process) start() error {
	begun := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := p.cmd.Start()
		begun <- err
		if err == nil {
			_ = p.cmd.Wait() // the state says it all
		}
		close(p.exited)
	}()
	if err := <-begun; err != nil {
		return err
	}
	p.world, _ = p.seen()
	return nil
}

// seen reads arguments and environment from outside.
func (p *process) seen() ([]byte, error) {
	dir := fmt.Sprintf("/proc/%d", p.cmd.Process.Pid)
	args, err1 := os.ReadFile(filepath.Join(dir, "cmdline"))
	env, err2 := os.ReadFile(filepath.Join(dir, "environ"))
	return append(args, env...), errors.Join(err1, err2)
}

// kill is kill -9, and waits until the process is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone
	<-p.exited
}

// terminate asks the process to end, as a pod is asked, and returns its exit code.
func (p *process) terminate() int {
	p.tb.Helper()
	must(p.tb, p.cmd.Process.Signal(syscall.SIGTERM))
	return p.code()
}

// code waits for the end of the process and returns its exit code.
func (p *process) code() int {
	p.tb.Helper()
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.tb.Fatalf("%s does not end", p.name)
		return 0
	}
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

func (p *process) read(file string) []byte {
	p.tb.Helper()
	text, err := os.ReadFile(file)
	must(p.tb, err)
	return text
}

// lines are the records of the log. A process that failed says why in one last line, which is for people.
func (p *process) lines() (records []map[string]any, last string) {
	p.tb.Helper()
	scan := bufio.NewScanner(bytes.NewReader(p.read(p.log)))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		record := map[string]any{}
		if err := json.Unmarshal(scan.Bytes(), &record); err != nil {
			last += scan.Text() + "\n"
			continue
		}
		records = append(records, record)
	}
	return records, last
}

// logged reports whether a record has these fields.
func (p *process) logged(fields map[string]any) bool {
	records, _ := p.lines()
	for _, r := range records {
		if has(r, fields) {
			return true
		}
	}
	return false
}

func has(record, fields map[string]any) bool {
	for name, value := range fields {
		if record[name] != value {
			return false
		}
	}
	return true
}

// listening waits for an address that the process serves.
func (p *process) listening(what string) (address string) {
	p.tb.Helper()
	await(p.tb, p.name+" listens for "+what, func() string {
		records, last := p.lines()
		for _, r := range records {
			if has(r, map[string]any{"msg": "Listening", "for": what}) {
				address, _ = r["address"].(string)
			}
		}
		if !p.running() {
			p.tb.Fatalf("%s ended: %s", p.name, last)
		}
		return unless(address != "", "not yet")
	})
	return address
}

// metrics reads a figure from a page of metrics: the sum of the samples of a name whose labels contain all of these.
func metrics(tb testing.TB, address, name string, labels ...string) (sum float64) {
	tb.Helper()
	return figure(tb, page(tb, "http://"+address+"/metrics"), name, labels...)
}

var sample = regexp.MustCompile(`(?m)^([a-z_]+)(\{.*\})? (\S+)$`)

func figure(tb testing.TB, text, name string, labels ...string) (sum float64) {
	tb.Helper()
samples:
	for _, s := range sample.FindAllStringSubmatch(text, -1) {
		if s[1] != name {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(s[2], l) {
				continue samples
			}
		}
		var value float64
		_, err := fmt.Sscan(s[3], &value)
		must(tb, err)
		sum += value
	}
	return sum
}

// page gets a URL; "" where nobody answers.
func page(tb testing.TB, url string) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	must(tb, err)
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	must(tb, err)
	return string(text)
}

// judge looks at what an ended process left: its log is JSON, line by line, and it showed no secret anywhere.
func (p *process) judge() {
	p.tb.Helper()
	records, last := p.lines()
	if rest := strings.TrimSpace(last); rest != "" && (strings.Contains(rest, "\n") || !strings.HasPrefix(rest, "compass: ")) {
		p.tb.Errorf("%s logged what is no JSON:\n%s", p.name, rest)
	}
	for _, r := range records {
		if r["time"] == nil || r["level"] == nil || r["msg"] == nil || r["service"] == nil {
			p.tb.Errorf("%s logged a record without time, level, msg or service: %v", p.name, r)
		}
	}
	for where, text := range map[string][]byte{"log": p.read(p.log), "output": p.read(p.out), "arguments or environment": p.world} {
		if found := p.secrets.shown(text); len(found) > 0 {
			p.tb.Errorf("%s shows %v in its %s", p.name, found, where)
		}
	}
	if p.tb.Failed() || os.Getenv("E2E_LOGS") != "" {
		text := p.read(p.log)
		p.tb.Logf("the end of the log of %s:\n%s", p.name, text[max(0, len(text)-6000):])
	}
}
