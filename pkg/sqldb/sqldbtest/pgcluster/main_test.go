package main

import (
	"bufio"
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

const asCommand = "PGCLUSTER_TEST_AS_COMMAND"

// TestMain runs the command instead of the tests if asCommand is set.
func TestMain(m *testing.M) {
	if _, ok := os.LookupEnv(asCommand); ok {
		main()
	}
	os.Exit(m.Run())
}

// command runs pgcluster in a process, with its own server.
func command(ctx context.Context, t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", sqldbtest.URLVariable+"=", sqldbtest.SwitchVariable+"=")
	cmd.Stderr = t.Output()
	return cmd
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := command(ctx, t, "--", "sh", "-c", `test -n "$`+sqldbtest.URLVariable+`" && exit 7`).Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 7 {
		t.Errorf("got %v, want exit status 7", err)
	}
	err = command(ctx, t, "--", "no-such-command").Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 {
		t.Errorf("no command: got %v, want exit status 1", err)
	}
	err = command(ctx, t).Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 {
		t.Errorf("no arguments: got %v, want exit status 2", err)
	}
}

// TestNothingStaysBehind ends the command normally and by signals, and waits until its
// server and its folder are gone.
func TestNothingStaysBehind(t *testing.T) {
	t.Parallel()
	for name, sig := range map[string]syscall.Signal{"end": 0, "terminated": syscall.SIGTERM, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := command(ctx, t, "--", "sh", "-c", "echo $"+sqldbtest.URLVariable+"; exec cat")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line := bufio.NewScanner(out)
			if !line.Scan() {
				t.Fatalf("no URL: %v", line.Err())
			}
			u, err := url.Parse(line.Text())
			if err != nil {
				t.Fatal(err)
			}
			db, err := sqldb.Open(ctx, u.String(), sqldb.Options{})
			if err != nil {
				t.Fatal(err)
			}
			gone := make(chan error, 1)
			go func() {
				_, err := db.ExecContext(ctx, "select pg_sleep(600)") // until the server closes the connection
				gone <- errors.Join(err, db.Close())
			}()

			if sig == 0 {
				if err := in.Close(); err != nil { // ends cat
					t.Error(err)
				}
			} else if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if err := <-gone; !errors.Is(err, sqldb.ErrUnavailable) {
				t.Errorf("got %v, want ErrUnavailable", err)
			}
			if sig != 0 {
				if err := in.Close(); err != nil { // ends a cat that SIGKILL orphaned
					t.Error(err)
				}
			}
			if err := cmd.Wait(); (err == nil) != (sig == 0) {
				t.Errorf("got %v", err)
			}
			dir := u.Query().Get("host")
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
					return
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					t.Fatalf("%s is still there", dir)
				}
			}
		})
	}
}
