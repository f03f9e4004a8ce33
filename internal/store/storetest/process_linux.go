package storetest

import (
	"io"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"syscall"
)

// identity is who the server runs as: Postgres refuses root.
type identity struct{ cred *syscall.Credential }

func unprivileged() (identity, error) {
	if os.Geteuid() != 0 {
		return identity{}, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return identity{}, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return identity{}, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return identity{}, err
	}
	return identity{cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
}

func (id identity) own(path string) error {
	if id.cred == nil {
		return nil
	}
	return os.Chown(path, int(id.cred.Uid), int(id.cred.Gid))
}

func (id identity) apply(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: id.cred}
}

// process is a running server.
type process struct {
	pid    int
	exited <-chan error
}

// start runs a server that dies with this process in any way that it may die: the kernel signals a child when the thread
// that started it ends, so that thread is kept for it. SIGQUIT is Postgres's immediate shutdown.
func (id identity) start(dir, log, path string, args ...string) (*process, error) {
	cmd := exec.Command(path, args...)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: id.cred, Pdeathsig: syscall.SIGQUIT, Setpgid: true}
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out

	begun, exited := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := cmd.Start()
		begun <- err
		if err == nil {
			exited <- cmd.Wait()
		}
	}()
	if err := <-begun; err != nil {
		return nil, err
	}
	return &process{pid: cmd.Process.Pid, exited: exited}, nil
}

const watcher = `cat >/dev/null
kill -QUIT "$1" 2>/dev/null
i=0
while kill -0 "$1" 2>/dev/null && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
rm -rf "$2"`

// watch starts a process that outlives this one by a moment and does what the kernel cannot: it removes the folder. It
// wakes when the pipe returned is closed, which the end of this process does.
func (p *process) watch(dir string) (io.Closer, error) {
	cmd := exec.Command("/bin/sh", "-c", watcher, "sh", strconv.Itoa(p.pid), dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return stdin, cmd.Start()
}
