package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// envVictim makes this test binary play a test that is killed while a process of the product runs; its value is the folder
// of that process.
const envVictim = "COMPASS_E2E_VICTIM"

// victim starts the program as every test here does, says its process id, and waits to be killed.
func victim() int {
	dir := os.Getenv(envVictim)
	p := &process{exited: make(chan struct{})}
	// A Runner that nobody answers tries for ever: it would not end by itself.
	p.cmd = exec.Command(filepath.Clean(program), "runner", "--server", "http://127.0.0.1:1",
		"--token-file", filepath.Join(dir, "token"), "--key-file", filepath.Join(dir, "key"))
	p.bind()
	if err := p.start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(p.cmd.Process.Pid) //nolint:forbidigo // the parent reads it
	<-p.exited
	return 1
}

func TestKilledTestTakesItsProcessesAlong(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	must(t, err)
	dir := t.TempDir()
	put(t, dir, "token", "no token")
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), envVictim+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var pid int
	_, err = fmt.Fscan(out, &pid)
	must(t, err)
	if alive := syscall.Kill(pid, 0); alive != nil {
		t.Fatalf("process %d does not run: %v", pid, alive)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	await(t, "the process of the killed test is gone", func() string {
		return unless(gone(pid), "process %d lives", pid)
	})
}

// gone reports whether a process has ended; one that nobody has waited for yet has too.
func gone(pid int) bool {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	var id int
	var name, letter string
	_, err = fmt.Sscan(string(state), &id, &name, &letter)
	return err != nil || letter == "Z"
}
