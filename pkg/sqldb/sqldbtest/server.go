package sqldbtest

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Server is a private Postgres server for tests. It listens on a socket in its own folder
// and accepts every client that may open the socket.
type Server struct {
	url  string
	dir  string
	cmd  *exec.Cmd
	hold io.WriteCloser // the server runs while it is open
}

// warden starts the server, and stops it when its standard input ends. That
// happens when this process ends, be it by SIGKILL, so no server is left behind.
//
//go:embed warden.sh
var warden string

// Start creates a cluster in a temporary folder and starts a server that does not sync to
// the disk. ctx bounds the start only.
func Start(ctx context.Context) (*Server, error) { return startServer(ctx, "off") }

// StartSynced is Start with the sync settings of production: a committed transaction is
// on the disk.
func StartSynced(ctx context.Context) (*Server, error) { return startServer(ctx, "on") }

func startServer(ctx context.Context, sync string) (_ *Server, err error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "anima-pg")
	if err != nil {
		return nil, err
	}
	started := false
	defer func() {
		if !started {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	attr, err := unprivileged(dir)
	if err != nil {
		return nil, err
	}
	// Without the cancellation of ctx: the server runs longer than this call.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), "/bin/sh", "-c", warden, "warden", bin, dir, sync)
	cmd.Dir = dir
	cmd.SysProcAttr = attr
	hold, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start postgres: %w", err)
	}
	// If ctx ends first, the warden script and its children end, which closes the output.
	inTime := context.AfterFunc(ctx, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) })
	defer inTime()
	var said strings.Builder
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if lines.Text() == "ready" && inTime() {
			started = true
			u := url.URL{
				Scheme: "postgres", User: url.User("postgres"), Path: "/postgres",
				RawQuery: url.Values{"host": {dir}, "sslmode": {"disable"}}.Encode(),
			}
			return &Server{url: u.String(), dir: dir, cmd: cmd, hold: hold}, nil
		}
		fmt.Fprintln(&said, lines.Text())
	}
	err = errors.Join(ctx.Err(), lines.Err(), hold.Close(), cmd.Wait())
	return nil, fmt.Errorf("start postgres from %s: %w\n%s", bin, err, said.String())
}

// URL returns the URL of the server for its superuser.
func (s *Server) URL() string { return s.url }

// Processes returns the ids of the server's current processes. It returns the errors of
// reading /proc.
func (s *Server) Processes() ([]int, error) {
	file, err := os.ReadFile(filepath.Join(s.dir, "data", "postmaster.pid"))
	if err != nil {
		return nil, err
	}
	first, _, _ := strings.Cut(string(file), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		return nil, err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", postmaster, postmaster))
	if err != nil {
		return nil, err
	}
	all := []int{postmaster}
	for _, child := range strings.Fields(string(children)) {
		id, err := strconv.Atoi(child)
		if err != nil {
			return nil, err
		}
		all = append(all, id)
	}
	return all, nil
}

// Stop stops the server and removes its folder.
func (s *Server) Stop() error { return errors.Join(s.hold.Close(), s.cmd.Wait()) }

// binaries returns the folder of the Postgres programs: on the PATH, otherwise the newest
// version that Debian's packages installed.
func binaries() (string, error) {
	if p, err := exec.LookPath("initdb"); err == nil {
		if p, err = filepath.EvalSymlinks(p); err == nil && complete(filepath.Dir(p)) {
			return filepath.Dir(p), nil
		}
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", err
	}
	best, newest := "", -1
	for _, dir := range found {
		v, err := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
		if err == nil && v > newest && complete(dir) {
			best, newest = dir, v
		}
	}
	if best == "" {
		return "", errors.New("initdb, pg_ctl and postgres are not installed: apt-get install postgresql, or put them on the PATH")
	}
	return best, nil
}

func complete(dir string) bool {
	for _, name := range []string{"initdb", "pg_ctl", "postgres"} {
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// unprivileged returns attributes that start the process in a new session, so that Ctrl-C
// does not reach it before this process, and without root, which Postgres refuses.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() != 0 {
		return attr, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("postgres does not run as root, and there is no user postgres or nobody: %w", err)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, os.Chown(dir, int(uid), int(gid))
}
