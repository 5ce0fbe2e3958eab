// Command pgcluster runs a command with a private Postgres server, so that the tests of
// many packages share one:
//
//	pgcluster -- go test ./...
//
// The command receives the server's URL in ANIMA_TEST_POSTGRES_URL. pgcluster stops the
// server when the command ends, and exits with its exit code. If the variable is already
// set, or ANIMA_TEST_POSTGRES is "off", no server is started.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/anima-run/anima/pkg/sqldb/sqldbtest"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgcluster:", err)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return 2, errors.New("usage: pgcluster -- COMMAND [ARGUMENT...]")
	}
	// The terminal sends Ctrl-C to the command too; pgcluster waits until the command has
	// ended.
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)

	env := os.Environ()
	url, _ := os.LookupEnv(sqldbtest.URLVariable)
	off, _ := os.LookupEnv(sqldbtest.SwitchVariable)
	if url == "" && off != "off" {
		server, err := start(ctx)
		if err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		env = append(env, sqldbtest.URLVariable+"="+server.URL())
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil // -1 means ended by a signal
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}

func start(ctx context.Context) (*sqldbtest.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return sqldbtest.Start(ctx)
}
