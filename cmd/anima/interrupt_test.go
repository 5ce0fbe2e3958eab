package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/embednats"
)

// server starts a NATS server without services, to which the commands of m connect, and
// calls receive with each request.
func (m *machine) server(receive func(*nats.Msg)) {
	m.t.Helper()
	s, err := embednats.Start(m.t.Context(), embednats.Options{Dir: m.t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(s.Shutdown)
	m.env["ANIMA_NATS_URL"] = s.ClientURL()
	nc, err := nats.Connect(s.ClientURL())
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(nc.Close)
	if _, err := nc.Subscribe(api.Root+".*.req.>", receive); err != nil {
		m.t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		m.t.Fatal(err)
	}
}

// TestInterruptedRequest ends commands by a signal while a service has their request. Only
// the caller knows the id of a request that moves money, so the error names it: the same
// command without it would move the money again.
func TestInterruptedRequest(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, next string }{
		{"agent fund lucky 5", "with --id fund-"},
		{"ledger transfer rich lucky 5", "with --id transfer-"},
		{"ledger transfer rich lucky 5 --id monday", "with --id monday the command transfers once"},
		{"ledger topup lucky 5", "with --id operator-"},
		{"wallet fund lucky 5", "with --id wallet-"},
		{"payment fetch lucky https://api.example.com/", "with --id cli-"},
		{"wallet rotate lucky --address 0x1", "with --address 0x1 the command rotates once"},
		{"agent list", "may have been executed"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			m := &machine{t: t, env: map[string]string{"HOME": t.TempDir()}}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			m.server(func(*nats.Msg) { cancel() })
			var out, errs bytes.Buffer
			code := run(ctx, append(strings.Fields(tt.args), "-o", "json"), m.app(nil, &out, &errs))
			var wire struct{ Error api.Error }
			one(t, errs.String(), &wire)
			e := wire.Error
			if code != exitUnavailable || e.Code != api.Unavailable || e.Message != "interrupted" || !strings.Contains(e.Next, tt.next) {
				t.Errorf("got exit %d and %+v, want exit %d, interrupted, and %q", code, e, exitUnavailable, tt.next)
			}
		})
	}
}

// TestRepeatable checks which errors name the flag that repeats a request.
func TestRepeatable(t *testing.T) {
	t.Parallel()
	m := &machine{t: t, env: map[string]string{"HOME": t.TempDir()}}
	m.server(func(*nats.Msg) {})
	a := m.app(nil, io.Discard, io.Discard)
	lost := failure(api.Unavailable, "treasury did not answer", "try again")
	if got := a.repeatable(lost, "--id", "a b", "pays once"); !errors.Is(got, lost) {
		t.Errorf("before the connection: got %v, want the error unchanged, as nothing was sent", got)
	}
	if _, err := a.connect(); err != nil {
		t.Fatal(err)
	}
	defer a.disconnect()
	if got, want := api.Wire(a.repeatable(lost, "--id", "a b", "pays once")).Next, "try again; with --id 'a b' the command pays once"; got != want {
		t.Errorf("after the request: got %q, want %q", got, want)
	}
	for _, err := range []error{nil, failure(api.Denied, "no", "")} {
		if got := a.repeatable(err, "--id", "x", "pays once"); !errors.Is(got, err) {
			t.Errorf("got %v, want %v unchanged", got, err)
		}
	}
}

// TestInterruptedDoctor checks that the doctor does not report the end of its own checks
// as faults of the installation.
func TestInterruptedDoctor(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"doctor", "-o", "json"}, u.app(nil, &out, &errs))
	if code != exitUnavailable || out.Len() > 0 || !strings.Contains(errs.String(), `"interrupted"`) {
		t.Errorf("got exit %d, %q and %q, want exit %d without findings", code, &out, &errs, exitUnavailable)
	}
}

// silent is an input without data, such as a terminal.
type silent struct {
	reading chan struct{} // receives a value when it is read
	over    chan struct{}
}

func (s silent) Read([]byte) (int, error) {
	select {
	case s.reading <- struct{}{}:
	default:
	}
	<-s.over
	return 0, io.EOF
}

// TestSignalEndsReading checks that the first signal ends a command that waits for its
// standard input.
func TestSignalEndsReading(t *testing.T) {
	t.Parallel()
	u := newMachine(t).up()
	for args, want := range map[string]int{
		"agent apply -": exitUnavailable, "session send lucky -": exitUnavailable, "session import lucky -": exitUnavailable,
		"context add lab nats://127.0.0.1:1 --token-file -":     exitUnavailable,
		"payment fetch lucky https://api.example.com/ --body -": exitUnavailable,
		"chat lucky": exitOK, // as ctrl-c at the prompt
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			in := silent{make(chan struct{}, 1), make(chan struct{})}
			defer close(in.over)
			var out, errs bytes.Buffer
			code := make(chan int, 1)
			go func() { code <- run(ctx, strings.Fields(args), u.app(in, &out, &errs)) }()
			<-in.reading
			cancel()
			if got := <-code; got != want || want != exitOK && !strings.HasPrefix(errs.String(), "anima: interrupted\n") {
				t.Errorf("got exit %d and %q, want exit %d and the interruption", got, &errs, want)
			}
		})
	}
}
