package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/safehttp"
	"github.com/anima-run/anima/pkg/telemetry"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
)

// wire is the transport of a connection.
type wire interface {
	transport() sdk.Transport
	// cut closes the transport and ends the server's process, and waits for both.
	cut()
	// last returns the exit code and the last output of a server that ended, or "".
	last() string
	network() string // value of the span attribute network.transport of OpenTelemetry
	received() int64 // bytes that the server has sent so far
}

const (
	grace     = time.Second      // between closing the input of a process and killing it
	writeWait = 10 * time.Second // time limit of a write to a server that does not read
)

// processLimits are the limits of a server's processes. The CPU limit covers the lifetime
// of a connection. Runtimes reserve much more address space than they use: fetch of
// Node.js fails with the 4 GiB of a command.
var processLimits = sandbox.Limits{CPU: time.Hour, AddressSpace: 64 << 30}

// process is a server that runs as a program in the agent's sandbox.
type process struct {
	p        *sandbox.Process
	revoke   func()       // revokes its grant of the egress proxy
	changing *atomic.Bool // see [bounded]
	read     atomic.Int64
}

func startProcess(ctx context.Context, s Server, a engine.Agent, cfg Config, changing *atomic.Bool) (wire, error) {
	var env []string
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		env = append(env, name+"="+s.Env[name].Reveal())
	}
	spec, revoke := cfg.Confine(a, sandbox.Spec{Command: commandLine(s), Env: env, Limits: processLimits, MaxOutput: 4 << 10})
	p, err := sandbox.Start(ctx, spec)
	if err != nil {
		revoke()
		return nil, err
	}
	return &process{p: p, revoke: revoke, changing: changing}, nil
}

// commandLine returns the shell command that executes the server.
func commandLine(s Server) string {
	words := []string{"exec"}
	for _, w := range append([]string{s.Command}, s.Args...) {
		words = append(words, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	return strings.Join(words, " ")
}

func (w *process) transport() sdk.Transport {
	return bounded{&sdk.IOTransport{Reader: w, Writer: w, MaxLineLength: maxFrame}, w.changing}
}

// Read reads from the standard output of the program.
func (w *process) Read(b []byte) (int, error) {
	n, err := w.p.Stdout.Read(b)
	w.read.Add(int64(n))
	return n, err
}

func (w *process) received() int64 { return w.read.Load() }

// Write writes to the standard input of the program. It sets a deadline, because the
// library holds a lock during a write and does not observe its context.
func (w *process) Write(b []byte) (int, error) {
	if err := w.p.Stdin.SetWriteDeadline(time.Now().Add(writeWait)); err != nil {
		return 0, err
	}
	return w.p.Stdin.Write(b)
}

// Close closes the standard input, and kills the program if it does not exit.
func (w *process) Close() error {
	_, _ = w.p.Stop(grace) // last returns the outcome
	return nil
}

func (w *process) cut() {
	_, _ = w.p.Stop(0) // last returns the outcome
	w.revoke()
}

func (w *process) last() string {
	select {
	case <-w.p.Done():
	case <-time.After(grace):
		return ""
	}
	res, err := w.p.Stop(0)
	if err != nil {
		return err.Error()
	}
	if res.Stopped != nil {
		return res.Stopped.Error()
	}
	return strings.TrimSpace(fmt.Sprintf("exit code %d\n%s", res.ExitCode, res.Stderr))
}

func (*process) network() string { return "pipe" }

// address is a server at a URL. It is the transport of its own HTTP client: it adds the
// headers, limits the size of responses, and cancels the requests in progress in cut.
type address struct {
	url     string
	host    string
	headers map[string]config.Secret
	base    http.RoundTripper
	client  *http.Client

	life   context.Context //nolint:containedctx // ends with cut
	cancel context.CancelFunc
	mu     sync.Mutex     // for under.Add and cancel
	under  sync.WaitGroup // requests in progress
	read   atomic.Int64
}

func dial(s Server, out safehttp.Options, wait time.Duration) (wire, error) {
	u, err := out.Parse(s.URL.Reveal())
	if err != nil {
		return nil, err
	}
	out.HeaderWait = wait
	w := &address{url: s.URL.Reveal(), host: u.Host, headers: s.Headers, client: out.Client()}
	w.life, w.cancel = context.WithCancel(context.Background())
	w.base = telemetry.NewTransport(w.client.Transport)
	w.client.Transport = w
	return w, nil
}

func (w *address) transport() sdk.Transport {
	return &sdk.StreamableClientTransport{Endpoint: w.url, HTTPClient: w.client, MaxRetries: 2, MaxEventSize: maxFrame}
}

func (w *address) cut() {
	w.mu.Lock()
	w.cancel()
	w.mu.Unlock()
	w.under.Wait()
	if c, ok := w.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (*address) last() string      { return "" }
func (*address) network() string   { return "tcp" }
func (w *address) received() int64 { return w.read.Load() }

// begin registers a request. It returns false after cut.
func (w *address) begin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.life.Err() != nil {
		return false
	}
	w.under.Add(1)
	return true
}

// RoundTrip implements http.RoundTripper.
func (w *address) RoundTrip(r *http.Request) (*http.Response, error) {
	if !w.begin() {
		return nil, errors.New("the connection is closed")
	}
	ctx, cancel := context.WithCancel(r.Context())
	unhook := context.AfterFunc(w.life, cancel)
	end := sync.OnceFunc(func() { unhook(); cancel(); w.under.Done() })
	r = r.Clone(ctx)
	if r.URL.Host == w.host { // the client does not follow redirects to another host either
		for name, value := range w.headers {
			r.Header.Set(name, value.Reveal())
		}
	}
	res, err := w.base.RoundTrip(r)
	if err != nil {
		end()
		return nil, err
	}
	b := &body{ReadCloser: res.Body, end: end, read: &w.read, left: maxFrame}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind == "text/event-stream" && res.StatusCode == http.StatusOK {
		b.left = maxStream // the library limits the size of each event, and queues them without a limit
	}
	res.Body = b
	return res, nil
}

type body struct {
	io.ReadCloser
	end  func()
	read *atomic.Int64
	left int64 // remaining bytes
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.read.Add(int64(n))
	if b.left -= int64(n); b.left < 0 {
		b.left = 0
		return 0, errors.New("the answer is too long")
	}
	return n, err
}

func (b *body) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
