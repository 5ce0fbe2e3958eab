package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/services/loop"
)

func TestMain(m *testing.M) {
	loop.Init()
	os.Exit(m.Run())
}

// patience is the timeout for everything that a test waits for.
const patience = time.Minute

// machine is the environment in which the program runs.
type machine struct {
	t   testing.TB
	env map[string]string
}

// newMachine returns a machine with its own home folder and free ports.
func newMachine(t testing.TB) *machine {
	t.Helper()
	script, err := filepath.Abs("testdata/script.json")
	if err != nil {
		t.Fatal(err)
	}
	return &machine{t: t, env: map[string]string{
		"HOME": t.TempDir(), "ANIMA_HTTP_ADDR": "127.0.0.1:0", "ANIMA_OPS_ADDR": "127.0.0.1:0", "ANIMA_NATS_LISTEN": "127.0.0.1:0",
		"ANIMA_INFERENCE_ROUTER_SIMULATED": "true", "ANIMA_INFERENCE_ROUTER_SCRIPT": script, "ANIMA_LOG_FORMAT": "text",
		"ANIMA_LOOP_LEASE": "2s", "ANIMA_TREASURY_KEYSTORE_SCRYPT_N": "2",
	}}
}

// data returns the default data folder.
func (m *machine) data() string { return filepath.Join(m.env["HOME"], ".local", "share", "anima") }

func (m *machine) app(in io.Reader, out, errs io.Writer) *app {
	var environ []string
	for k, v := range m.env {
		environ = append(environ, k+"="+v)
	}
	return &app{In: in, Out: out, Err: errs, Environ: environ, Lookup: func(k string) (string, bool) { v, ok := m.env[k]; return v, ok }}
}

// result is the outcome of a command.
type result struct {
	code     int
	out, err string
}

func (m *machine) run(stdin string, args ...string) result {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	code := run(ctx, args, m.app(strings.NewReader(stdin), &out, &errs))
	return result{code, out.String(), errs.String()}
}

// cli runs a command that must succeed and returns its output.
func (m *machine) cli(args ...string) string {
	m.t.Helper()
	r := m.run("", args...)
	if r.code != exitOK || r.err != "" {
		m.t.Fatalf("anima %q: exit %d\n%s%s", args, r.code, r.out, r.err)
	}
	return r.out
}

// fails runs a command that must end with the exit code and print each of the words.
func (m *machine) fails(code int, stdin string, args []string, words ...string) string {
	m.t.Helper()
	r := m.run(stdin, args...)
	if r.code != code {
		m.t.Fatalf("anima %.80q: exit %d, want %d\n%s%s", args, r.code, code, r.out, r.err)
	}
	for _, w := range words {
		if !strings.Contains(r.err, w) {
			m.t.Errorf("anima %.80q says %q, want it to say %q", args, r.err, w)
		}
	}
	return r.err
}

// asked runs a command with -o json and decodes the single value that it prints.
func asked[T any](m *machine, args ...string) T {
	m.t.Helper()
	var v T
	text := m.cli(append(args, "-o", "json")...)
	if _, end := any(v).(api.LoopEnd); end { // send prints the events of its run
		all := lines[cliEvent](m.t, text)
		text = string(all[len(all)-1].Data)
	}
	one(m.t, text, &v)
	return v
}

// one decodes text that must be exactly one JSON value.
func one(t testing.TB, text string, v any) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(v); err != nil {
		t.Fatalf("not JSON: %v\n%s", err, text)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		t.Fatalf("more than one JSON value:\n%s", text)
	}
}

// lines decodes text that must be one JSON value per line.
func lines[T any](t testing.TB, text string) []T {
	t.Helper()
	var all []T
	for l := range strings.Lines(text) {
		var v T
		one(t, l, &v)
		all = append(all, v)
	}
	return all
}

// running is an anima that is running.
type running struct {
	upView
	*machine
	token string
	log   func() string // standard error so far
	stop  func()        // ends it as a signal does and waits; idempotent
}

// up starts anima and waits until it is ready.
func (m *machine) up(args ...string) *running {
	m.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(m.t.Context()))
	out, in := io.Pipe()
	errs := &record{also: apptest.Output(m.t)}
	ended := make(chan int, 1)
	go func() {
		code := run(ctx, append([]string{"up", "-o", "json"}, args...), m.app(nil, in, errs))
		_ = in.CloseWithError(errors.New("anima up ended")) // never fails
		ended <- code
	}()
	r := &running{machine: m, log: errs.text}
	r.stop = sync.OnceFunc(func() {
		cancel()
		go func() { _, _ = io.Copy(io.Discard, out) }() // ends with anima, which must not block on a full pipe
		select {
		case code := <-ended:
			if code != exitOK {
				m.t.Errorf("anima up: exit %d\n%s", code, errs.text())
			}
		case <-time.After(patience):
			m.t.Error("anima up did not end")
		}
	})
	m.t.Cleanup(r.stop)
	if err := json.NewDecoder(out).Decode(&r.upView); err != nil {
		m.t.Fatalf("anima up: %v\n%s", err, errs.text())
	}
	var ep endpoint
	data, err := os.ReadFile(filepath.Join(r.Data, endpointFile))
	if err == nil {
		err = json.Unmarshal(data, &ep)
	}
	if err != nil {
		m.t.Fatal(err)
	}
	r.token = ep.Token
	return r
}

// born creates an agent and deposits one dollar.
func (m *machine) born(name string) api.Agent {
	m.t.Helper()
	r := m.run("---\nname: "+name+"\n---\nBe useful.\n", "agent", "apply", "-", "-o", "json")
	var g api.Agent
	one(m.t, r.out, &g)
	m.cli("agent", "fund", g.ID, "1")
	return g
}

// record keeps what is written to it. It is safe for concurrent use.
type record struct {
	mu   sync.Mutex
	b    strings.Builder
	also io.Writer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.b.Write(p)
	return r.also.Write(p)
}

func (r *record) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.b.String()
}
