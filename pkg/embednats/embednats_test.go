package embednats_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/embednats"
)

// inFolder is the variable that makes the test binary run a server in a folder, for tests
// that kill it.
const inFolder = "EMBEDNATS_TEST_FOLDER"

func TestMain(m *testing.M) {
	dir, ok := os.LookupEnv(inFolder)
	if !ok {
		os.Exit(m.Run())
	}
	s, err := embednats.Start(context.Background(), embednats.Options{Dir: dir, Listen: ":0"})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.ClientURL())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
}

func start(t *testing.T, o embednats.Options) *embednats.Server {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	s, err := embednats.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

func connect(t *testing.T, url string, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func publish(t *testing.T, js jetstream.JetStream, n int) {
	t.Helper()
	_, err := js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s.>"}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if _, err := js.Publish(t.Context(), "s.x", fmt.Append(nil, i)); err != nil {
			t.Fatal(err)
		}
	}
}

func stored(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	s, err := js.Stream(t.Context(), "S")
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

func TestKeepsMessagesOverRestart(t *testing.T) {
	t.Parallel()
	for _, sync := range []bool{false, true} {
		dir := t.TempDir()
		s := start(t, embednats.Options{Dir: dir, SyncAlways: sync})
		if got := s.ClientURL(); got != "" {
			t.Errorf("ClientURL is %q without a port", got)
		}
		publish(t, connect(t, "", nats.InProcessServer(s.InProcess())), 50)
		s.Shutdown() // with a connected client
		s.Shutdown()
		if err := s.Healthz(); err == nil {
			t.Error("healthy after Shutdown")
		}

		s = start(t, embednats.Options{Dir: dir, SyncAlways: sync})
		if err := s.Healthz(); err != nil {
			t.Error(err)
		}
		if got := stored(t, connect(t, "", nats.InProcessServer(s.InProcess()))); got != 50 {
			t.Errorf("%d messages, want 50", got)
		}
	}
}

// TestKilled kills the process of a server. While that runs, its folder is locked;
// afterwards another server finds each acknowledged message.
func TestKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), inFolder+"="+dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	publish(t, connect(t, strings.TrimSpace(url), nats.NoReconnect()), 50)

	_, err = embednats.Start(t.Context(), embednats.Options{Dir: dir})
	if want := fmt.Sprint("in use by process ", cmd.Process.Pid); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("second server on the folder: got %v, want %q", err, want)
	}

	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the server ended by itself")
	}
	s := start(t, embednats.Options{Dir: dir})
	if got := stored(t, connect(t, "", nats.InProcessServer(s.InProcess()))); got != 50 {
		t.Errorf("%d messages, want 50", got)
	}
}

func TestFolderBelongsToOne(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embednats.Options{Dir: dir})
	if _, err := embednats.Start(t.Context(), embednats.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "another folder") {
		t.Errorf("got %v, want a refusal that says what to do", err)
	}
	s.Shutdown()
	start(t, embednats.Options{Dir: dir})
}

// TestJetStreamSwitchedOff checks that a server that has switched JetStream off, as it does
// when it may not write the index of a stream, stores messages again for clients that
// stayed connected, and has the earlier ones.
func TestJetStreamSwitchedOff(t *testing.T) {
	t.Parallel()
	s := start(t, embednats.Options{Log: slog.New(slog.DiscardHandler)})
	js := connect(t, "", nats.InProcessServer(s.InProcess()), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	publish(t, js, 10)
	if err := s.Running().ShutdownJetStream(); err != nil {
		t.Fatal(err)
	}
	if err := s.Healthz(); err == nil {
		t.Error("healthy without JetStream")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		once, end := context.WithTimeout(ctx, time.Second)
		_, err := js.Publish(once, "s.x", []byte("after"))
		end()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("no message is stored: %v", err)
		}
	}
	if got := stored(t, js); got < 11 {
		t.Errorf("%d messages, want 11", got)
	}
	if err := s.Healthz(); err != nil {
		t.Error(err)
	}
}

// TestFolderIsFreeAfterShutdown checks that another server can have the folder at once,
// while a child process that was just started still has the open files of this one.
func TestFolderIsFreeAfterShutdown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embednats.Options{Dir: dir})
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(open, func(name string) bool {
		file, err := os.Readlink(name)
		return err == nil && file == filepath.Join(dir, "server.lock")
	})
	if i < 0 {
		t.Fatal("the server has no open lock")
	}
	fd, err := strconv.Atoi(filepath.Base(open[i]))
	if err != nil {
		t.Fatal(err)
	}
	held, err := syscall.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(held) }() // it is only held
	s.Shutdown()
	start(t, embednats.Options{Dir: dir})
}

func TestToken(t *testing.T) {
	t.Parallel()
	s := start(t, embednats.Options{Token: "s3cret", Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)})
	inProcess := nats.InProcessServer(s.InProcess())

	publish(t, connect(t, s.ClientURL(), nats.Token("s3cret")), 1)
	if got := stored(t, connect(t, "", inProcess, nats.Token("s3cret"))); got != 1 {
		t.Errorf("%d messages, want 1", got)
	}

	var asking sync.WaitGroup
	defer asking.Wait()
	for name, opts := range map[string][]nats.Option{"none": nil, "wrong": {nats.Token("s3cre")}} {
		if _, err := nats.Connect(s.ClientURL(), opts...); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("token %s over TCP: got %v, want ErrAuthorization", name, err)
		}
		// Over the pipe the server cannot report the error, but ends the connection.
		asking.Go(func() {
			if nc, err := nats.Connect("", append(opts, inProcess, nats.Timeout(5*time.Second))...); err == nil {
				nc.Close()
				t.Errorf("token %s in process: let in", name)
			} else if errors.Is(err, nats.ErrTimeout) {
				t.Errorf("token %s in process: %v", name, err)
			}
		})
	}
}

func TestLargeMessage(t *testing.T) {
	t.Parallel()
	s := start(t, embednats.Options{})
	js := connect(t, "", nats.InProcessServer(s.InProcess()))
	publish(t, js, 0)
	if _, err := js.Publish(t.Context(), "s.large", make([]byte, 8<<20)); err != nil {
		t.Errorf("8 MiB: %v", err)
	}
	if _, err := js.Publish(t.Context(), "s.large", make([]byte, 8<<20+1)); !errors.Is(err, nats.ErrMaxPayload) {
		t.Errorf("one byte more: got %v, want ErrMaxPayload", err)
	}
}

func TestStartSaysWhatToDo(t *testing.T) {
	t.Parallel()
	busy, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = busy.Close() }()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	blocked := t.TempDir() // the server cannot create its own folder in it
	if err := os.WriteFile(filepath.Join(blocked, "jetstream"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name string
		ctx  func() context.Context
		o    embednats.Options
		want []string
	}{
		{"busy port", t.Context, embednats.Options{Dir: t.TempDir(), Listen: busy.Addr().String()}, []string{busy.Addr().String(), "already in use", "choose another port"}},
		{"no port", t.Context, embednats.Options{Dir: t.TempDir(), Listen: "127.0.0.1"}, []string{"host:port"}},
		{"open to all", t.Context, embednats.Options{Dir: t.TempDir(), Listen: "0.0.0.0:0"}, []string{"set a token"}},
		{"no folder", t.Context, embednats.Options{}, []string{"none given"}},
		{"folder is a file", t.Context, embednats.Options{Dir: file}, []string{"name one that this user may write", file}},
		{"streams have no folder", t.Context, embednats.Options{Dir: blocked}, []string{"storage directory", blocked}},
		{"context ended", func() context.Context { return ended }, embednats.Options{Dir: t.TempDir()}, []string{context.Canceled.Error()}},
	}
	for _, tt := range tests {
		s, err := embednats.Start(tt.ctx(), tt.o)
		if err == nil {
			s.Shutdown()
			t.Errorf("%s: no error", tt.name)
			continue
		}
		for _, want := range tt.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %q, want something with %q", tt.name, err, want)
			}
		}
		if tt.o.Dir != "" && tt.o.Dir != file && tt.o.Dir != blocked { // a failed start releases the folder
			start(t, embednats.Options{Dir: tt.o.Dir})
		}
	}
}
