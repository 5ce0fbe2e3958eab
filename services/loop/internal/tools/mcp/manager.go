package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// Manager holds the connections of all agents of this process. A connection is made when
// it is first needed and shared by the runs of the agent. Manager has no state that must
// survive a crash: servers are stored in files, and lost connections are made again. It
// is safe for concurrent use.
type Manager struct {
	cfg      Config
	registry registry

	mu    sync.Mutex
	links map[key]*link
	rests map[key]rest // servers that failed, with the time of the next attempt
	ended bool
	work  sync.WaitGroup // counts all goroutines of the manager
}

type key struct{ agent, server string }

// rest is the backoff state of a server that failed.
type rest struct {
	server Server // as it was then; a changed server is tried at once
	until  time.Time
	count  int
	reason string
}

// Limits of the backoff of a server that fails.
const (
	firstRest = 5 * time.Second
	longRest  = 5 * time.Minute
)

// link is one connection to a server. The fields after ready are written under Manager.mu
// before ready is closed. They may be read after that; those that change later need the
// mutex.
type link struct {
	key
	server  Server
	agent   engine.Agent    // as it was when the connection was made: ID, Workspace, Network
	life    context.Context //nolint:containedctx // ends with errRetired when the connection is to be closed
	retire  context.CancelCauseFunc
	gone    chan struct{} // closed when the connection has ended
	stale   atomic.Bool   // the server reported that its list of tools has changed
	listing sync.Mutex

	ready   chan struct{} // closed when the connection is made or has failed
	err     error
	wire    wire
	session *sdk.ClientSession
	offers  []offer
	refused []string
	calls   int // in progress
	used    time.Time
	made    time.Time
	end     error // why the connection ended
}

var errRetired = errors.New("the connection was closed")

// wait waits until the connection is made. It returns the error of making it, or the
// cause of ctx.
func (l *link) wait(ctx context.Context) error {
	select {
	case <-l.ready:
		return l.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// New returns a manager. Run closes unused connections; Close closes all of them.
func New(cfg Config) *Manager {
	return &Manager{
		cfg: cfg.withDefaults(), registry: registry{dir: cfg.Dir, out: cfg.Outbound},
		links: map[key]*link{}, rests: map[key]rest{},
	}
}

// Run closes connections that were not used for Config.Idle, until ctx ends. It returns
// nil.
func (m *Manager) Run(ctx context.Context) error {
	wait.Every(ctx, max(m.cfg.Idle/4, time.Second), m.sweep)
	return nil
}

// sweep retires connections that have no calls and were not used for Config.Idle.
func (m *Manager) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.links {
		if !l.made.IsZero() && l.calls == 0 && m.cfg.Now().Sub(l.used) >= m.cfg.Idle {
			m.retire(l)
		}
	}
	for k, r := range m.rests {
		if m.cfg.Now().Sub(r.until) > longRest {
			delete(m.rests, k)
		}
	}
}

// Close cancels all calls, closes all connections and waits for them. No connection is
// made afterwards.
func (m *Manager) Close() {
	m.mu.Lock()
	for _, l := range m.links {
		m.retire(l)
	}
	m.ended = true
	m.mu.Unlock()
	m.work.Wait()
}

// Tools implements [engine.Toolbox]: it returns the tools that the agent's definition
// grants and its servers offer, sorted by name. It waits for servers that are not
// connected yet, for a limited time, and omits the tools of servers that are not
// available.
func (m *Manager) Tools(ctx context.Context, a engine.Agent) []engine.Tool {
	if !slices.ContainsFunc(a.Tools, func(t string) bool { return strings.HasPrefix(t, api.MCPPrefix) }) {
		return nil
	}
	servers, faults, err := m.registry.list(a.ID)
	if err != nil {
		m.cfg.Log.WarnContext(ctx, "an agent's MCP servers cannot be read", "agent", a.ID, "err", err)
		return nil
	}
	for _, f := range faults {
		m.failed(ctx, key{a.ID, f.name}, Server{}, errors.New(f.reason))
	}
	m.forget(a.ID, servers)
	wait, cancel := context.WithTimeout(ctx, m.cfg.Wait)
	defer cancel()
	var tools []engine.Tool
	seen := map[string]bool{}
	for _, l := range m.linksTo(ctx, a, servers) {
		if l.wait(wait) != nil {
			continue
		}
		for _, o := range m.offers(wait, l) {
			if !api.Grants(a.Tools, o.name) || len(tools) == MaxTools || seen[o.name] {
				continue // of tools with the same name, that of the first server is used
			}
			seen[o.name] = true
			tools = append(tools, o.tool(m.cfg, func(ctx context.Context, c engine.Call) (engine.Output, error) {
				return m.call(ctx, c, l.key.server, o)
			}))
		}
	}
	slices.SortFunc(tools, func(x, y engine.Tool) int { return cmp.Compare(x.Name, y.Name) })
	return tools
}

// linksTo returns the connections to servers, except those that are not attempted now.
func (m *Manager) linksTo(ctx context.Context, a engine.Agent, servers []Server) []*link {
	var links []*link
	for _, s := range servers {
		if l, err := m.link(ctx, a, s); err == nil {
			links = append(links, l)
		}
	}
	return links
}

// forget retires an agent's connections to servers that are not in the list.
func (m *Manager) forget(agent string, servers []Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, l := range m.links {
		if k.agent == agent && !slices.ContainsFunc(servers, func(s Server) bool { return s.Name == k.server }) {
			m.retire(l)
		}
	}
}

var errNoNetwork = errors.New("it is at an address and this agent's sandbox has no network; the creator can grant it with sandbox.network in AGENT.md")

// link returns the connection to a server. The connection may not be ready yet. An error
// is the reason why no connection is attempted now.
func (m *Manager) link(ctx context.Context, a engine.Agent, s Server) (*link, error) {
	k := key{a.ID, s.Name}
	if s.URL != "" && !a.Network {
		m.failed(ctx, k, s, errNoNetwork)
		return nil, errNoNetwork
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended {
		return nil, errors.New("the service is stopping")
	}
	if l := m.links[k]; l != nil {
		if reflect.DeepEqual(l.server, s) && l.agent.Network == a.Network && l.agent.Workspace == a.Workspace {
			l.used = m.cfg.Now()
			return l, nil
		}
		m.retire(l)
		delete(m.rests, k)
	}
	if r, resting := m.rests[k]; resting && m.cfg.Now().Before(r.until) && reflect.DeepEqual(r.server, s) {
		return nil, fmt.Errorf("%s; it is tried again in %d s", r.reason, int(r.until.Sub(m.cfg.Now()).Seconds())+1)
	}
	l := &link{key: k, server: s, agent: a, used: m.cfg.Now(), ready: make(chan struct{}), gone: make(chan struct{})}
	l.life, l.retire = context.WithCancelCause(context.WithoutCancel(ctx))
	m.links[k] = l
	m.work.Go(func() { m.run(l) })
	return l, nil
}

// run makes a connection, waits until it ends or is retired, and closes it.
func (m *Manager) run(l *link) {
	defer close(l.gone)
	making, cancel := context.WithTimeout(l.life, m.cfg.Connect)
	w, session, offers, refused, err := m.open(making, l)
	if err != nil {
		err = l.server.explain(making, err, w)
	}
	cancel()
	m.mu.Lock()
	retired := l.life.Err() != nil
	if err == nil && retired {
		err = errRetired
	}
	l.err, l.wire, l.session, l.offers, l.refused, l.made = err, w, session, offers, refused, m.cfg.Now()
	if err != nil && m.links[l.key] == l {
		delete(m.links, l.key)
	}
	m.mu.Unlock()
	switch {
	case err != nil && !retired:
		m.failed(l.life, l.key, l.server, err)
	case err == nil && len(refused) > 0:
		m.cfg.Log.WarnContext(l.life, "tools of an MCP server are not used", "agent", l.key.agent, "server", l.key.server,
			"tools", len(offers), "refused", first(refused, 10, "; "))
	}
	close(l.ready)
	if err != nil {
		l.close()
		return
	}
	var end error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end = session.Wait()
	}()
	select {
	case <-ended:
		m.lost(l, end)
	case <-l.life.Done():
		l.end = errRetired
		l.close()
		<-ended
	}
}

// close closes the session, and the transport after at most 3 s.
func (l *link) close() {
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if l.session != nil {
			_ = l.session.Close() // the connection is given up; its error has no use
		}
	}()
	insist := time.NewTimer(3 * time.Second)
	defer insist.Stop()
	select {
	case <-asked:
	case <-insist.C:
	}
	if l.wire != nil {
		l.wire.cut()
	}
	<-asked
}

// open starts a server or connects to its URL, and lists its tools.
func (m *Manager) open(ctx context.Context, l *link) (w wire, session *sdk.ClientSession, offers []offer, refused []string, err error) {
	if l.server.Command != "" {
		w, err = startProcess(ctx, l.server, l.agent, m.cfg)
	} else {
		w, err = dial(l.server, m.cfg.Outbound, m.cfg.Call+writeWait)
	}
	if err != nil {
		return nil, nil, nil, nil, err
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "anima", Version: "1"}, &sdk.ClientOptions{
		Capabilities:           &sdk.ClientCapabilities{}, // the server may not send requests
		MultiRoundTrip:         &sdk.MultiRoundTripOptions{Disabled: true},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { l.stale.Store(true) },
	})
	if session, err = client.Connect(ctx, w.transport(), nil); err != nil {
		return w, nil, nil, nil, err
	}
	offers, refused, err = list(ctx, session, l.server.Name)
	return w, session, offers, refused, err
}

// list returns the tools that a server offers, of the first maxListed tools that it lists.
func list(ctx context.Context, session *sdk.ClientSession, server string) ([]offer, []string, error) {
	var listed []*sdk.Tool
	cursor, more := "", true
	for page := 0; more && page < maxPages && len(listed) <= maxListed; page++ {
		res, err := session.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor})
		if err != nil {
			return nil, nil, err
		}
		listed = append(listed, res.Tools...)
		more, cursor = res.NextCursor != "" && res.NextCursor != cursor, res.NextCursor
	}
	read := listed[:min(len(listed), maxListed)]
	offers, refused := offersOf(server, read)
	if more || len(listed) > maxListed {
		refused = append(refused, fmt.Sprintf("all further: only the first %d tools of a server are read", len(read)))
	}
	return offers, refused, nil
}

// offers returns the tools of a connected server. It lists them again if the server
// reported a change; if that fails, it returns the earlier list.
func (m *Manager) offers(ctx context.Context, l *link) []offer {
	if l.err != nil {
		return nil
	}
	l.listing.Lock()
	defer l.listing.Unlock()
	if l.stale.Swap(false) {
		offers, refused, err := list(ctx, l.session, l.server.Name)
		if err != nil {
			l.stale.Store(true) // keep the earlier list and try again later
		} else {
			m.mu.Lock()
			l.offers, l.refused = offers, refused
			m.mu.Unlock()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return l.offers
}

// failed records the failure of a server and the time of the next attempt. It logs each
// new reason once.
func (m *Manager) failed(ctx context.Context, k key, s Server, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.rests[k]
	if r.reason != err.Error() {
		m.cfg.Log.WarnContext(ctx, "an MCP server cannot be used", "agent", k.agent, "server", k.server, "err", err)
	}
	r.until = m.cfg.Now().Add(min(longRest, firstRest<<min(r.count, 10)))
	r.server, r.count, r.reason = s, r.count+1, err.Error()
	m.rests[k] = r
}

// lost is called when a connection has ended and was not retired.
func (m *Manager) lost(l *link, end error) {
	if end == nil {
		end = errors.New("the server closed the connection")
	}
	l.end = l.server.explain(context.WithoutCancel(l.life), end, l.wire)
	l.wire.cut()
	m.mu.Lock()
	mine := m.links[l.key] == l
	if mine {
		delete(m.links, l.key)
	}
	if m.cfg.Now().Sub(l.made) > longRest {
		delete(m.rests, l.key) // the connection was stable, so earlier failures do not count
	}
	m.mu.Unlock()
	if mine {
		m.failed(l.life, l.key, l.server, fmt.Errorf("it ended: %w", l.end))
	}
}

// retire removes a connection and ends its calls; its goroutine closes it. The caller
// holds mu.
func (m *Manager) retire(l *link) {
	if m.links[l.key] == l {
		delete(m.links, l.key)
	}
	l.retire(errRetired)
}

// call makes one call of a tool. It repeats the call once if the server has lost the
// session, because the server then refused the call without executing it.
func (m *Manager) call(ctx context.Context, c engine.Call, server string, o offer) (engine.Output, error) {
	s, err := m.registry.get(c.Agent.ID, server)
	if err != nil {
		return engine.Output{}, fmt.Errorf("the MCP server %s: %w", server, err)
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Call)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	for retry := false; ; retry = true {
		l, err := m.take(ctx, c.Agent, s)
		if err != nil {
			if outer.Err() != nil {
				return engine.Output{}, context.Cause(outer)
			}
			return engine.Output{}, fmt.Errorf("the MCP server %s cannot be used now: %w", server, err)
		}
		unhook := context.AfterFunc(l.life, func() { stop(errRetired) })
		res, err := m.send(ctx, l, c, o)
		unhook()
		m.give(l)
		switch {
		case err == nil:
			return output(s, o, res)
		case outer.Err() != nil:
			return engine.Output{}, context.Cause(outer)
		case errors.Is(context.Cause(ctx), errRetired):
			return engine.Output{}, fmt.Errorf("the connection to the MCP server %s was closed during the call; the call may or may not have happened", server)
		case ctx.Err() != nil:
			return engine.Output{}, fmt.Errorf("the MCP server %s did not answer within %s; the call may or may not have happened: %w", server, m.cfg.Call, context.DeadlineExceeded)
		case errors.Is(err, sdk.ErrSessionMissing) && !retry:
			// The server was restarted and refused the call before executing it.
			select {
			case <-l.gone:
			case <-ctx.Done():
			}
			m.relent(l.key)
			continue
		}
		return engine.Output{}, l.failure(ctx, err)
	}
}

// relent resets the backoff of a server.
func (m *Manager) relent(k key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.rests, k)
}

// take returns a connection that is ready, and counts a call on it.
func (m *Manager) take(ctx context.Context, a engine.Agent, s Server) (*link, error) {
	l, err := m.link(ctx, a, s)
	if err != nil {
		return nil, err
	}
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.life.Err() != nil {
		return nil, errRetired
	}
	l.calls++
	return l, nil
}

// give ends a call on a connection.
func (m *Manager) give(l *link) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.calls--
	l.used = m.cfg.Now()
}

// send makes the call in a span of its own and passes the span's context to the server.
func (m *Manager) send(ctx context.Context, l *link, c engine.Call, o offer) (_ *sdk.CallToolResult, err error) {
	ctx, span := m.cfg.Tracer.Start(ctx, "tools/call "+o.name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("mcp.method.name", "tools/call"), semconv.GenAIOperationNameExecuteTool,
		attribute.String("gen_ai.tool.name", o.name), attribute.String("network.transport", l.wire.network()),
	))
	defer func() {
		if err != nil {
			telemetry.Fail(span, "mcp_error", "the MCP server gave no result")
		}
		span.End()
	}()
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	meta := sdk.Meta{}
	for k, v := range carrier {
		meta[k] = v
	}
	if _, err := decode(c.Args); err != nil {
		return nil, err
	}
	args := c.Args // as policy judged them
	if len(bytes.TrimSpace(args)) == 0 {
		args = json.RawMessage("{}")
	}
	res, err := l.session.CallTool(ctx, &sdk.CallToolParams{Meta: meta, Name: o.remote, Arguments: args})
	if err == nil && res.IsError {
		telemetry.Fail(span, "tool_error", "the tool reported an error")
	}
	return res, err
}

// failure returns the error of a call without a result. If the server answered with an
// error, the call was refused. Otherwise it may or may not have been executed.
func (l *link) failure(ctx context.Context, err error) error {
	if _, answered := errors.AsType[*jsonrpc.Error](err); answered {
		return fmt.Errorf("the MCP server %s refused the call: %w", l.server.Name, l.server.explain(ctx, err, nil))
	}
	wait := grace
	if l.server.Command != "" {
		wait = 5 * time.Second // the process is being ended, so gone is closed soon
	}
	select {
	case <-l.gone:
		err = l.end
	case <-time.After(wait):
	}
	return fmt.Errorf("the MCP server %s gave no result, and the call may or may not have happened: %w", l.server.Name, l.server.explain(ctx, err, nil))
}

// explain returns an error for the model and the log: without secrets and hidden
// instructions, and at most 1,000 characters long.
func (s Server) explain(ctx context.Context, err error, w wire) error {
	if errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return errors.New("it did not answer in time")
	}
	text := err.Error()
	if w != nil {
		if last := w.last(); last != "" {
			text += "; its last output: " + last
		}
	}
	return errors.New(defused(s.redact(text), 1_000))
}

// first returns a list as text, with at most its first most items.
func first(list []string, most int, separator string) string {
	text := strings.Join(list[:min(len(list), most)], separator)
	if more := len(list) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
