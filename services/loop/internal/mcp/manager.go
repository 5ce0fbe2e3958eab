package mcp

import (
	"cmp"
	"context"
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
	"go.opentelemetry.io/otel/trace"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/telemetry"

	"github.com/anima-run/anima/services/loop/internal/turn"
)

// Manager holds the connections of all agents of this process. Connections are
// made when they are first wanted and shared by an agent's runs. It keeps nothing
// that a crash could take away: servers are in files, and a connection that is
// gone is made again.
type Manager struct {
	cfg      Config
	registry registry

	mu    sync.Mutex
	links map[key]*link
	rests map[key]rest // servers that failed
	ended bool
	work  sync.WaitGroup // everything that was started
}

type key struct{ agent, server string }

// rest is how long a server that failed is left alone.
type rest struct {
	server Server // as it was then: a changed one is tried at once
	until  time.Time
	count  int
	reason string
}

// Times between tries to reach a server that fails.
const (
	firstRest = 5 * time.Second
	longRest  = 5 * time.Minute
)

// link is one connection. What comes after ready may be read once ready is closed,
// and is written under Manager.mu.
type link struct {
	key
	server    Server
	workspace string
	network   bool // granted when it was made
	cancel    context.CancelFunc
	gone      chan struct{} // closed when the connection is over
	stale     atomic.Bool   // the server changed its list
	listing   sync.Mutex

	ready   chan struct{} // closed when it is made, or has failed
	err     error
	wire    wire
	session *sdk.ClientSession
	offers  []offer
	refused []refusal
	calls   map[*context.CancelCauseFunc]bool
	used    time.Time
	made    time.Time
	retired bool
	end     error // why the connection is over
}

// New returns a manager. Its Run closes what is not used, its Close everything.
func New(cfg Config) *Manager {
	return &Manager{
		cfg: cfg.withDefaults(), registry: registry{dir: cfg.Dir, out: cfg.Outbound},
		links: map[key]*link{}, rests: map[key]rest{},
	}
}

// Run closes connections that have not been used for a while, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	tick := time.NewTicker(max(m.cfg.Idle/4, time.Second))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			m.sweep()
		}
	}
}

// sweep retires connections without calls that were last used too long ago.
func (m *Manager) sweep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.links {
		select {
		case <-l.ready:
		default:
			continue
		}
		if len(l.calls) == 0 && m.cfg.Now().Sub(l.used) >= m.cfg.Idle {
			m.retire(l)
		}
	}
	for k, r := range m.rests {
		if m.cfg.Now().Sub(r.until) > longRest {
			delete(m.rests, k)
		}
	}
}

// Close ends every call and connection, and waits for them. Nothing is connected
// after it.
func (m *Manager) Close() {
	m.mu.Lock()
	for _, l := range m.links {
		m.retire(l)
	}
	m.ended = true
	m.mu.Unlock()
	m.work.Wait()
}

// Tools implements [Toolbox].
func (m *Manager) Tools(ctx context.Context, a turn.Agent) []turn.Tool {
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
	var links []*link
	for _, s := range servers {
		if l, err := m.link(ctx, a, s); err == nil {
			links = append(links, l)
		}
	}
	var tools []turn.Tool
	seen := map[string]bool{}
	for _, l := range links {
		select {
		case <-l.ready:
		case <-wait.Done():
			continue
		}
		for _, o := range m.offers(wait, l) {
			if !api.Grants(a.Tools, o.name) || len(tools) == MaxTools || seen[o.name] {
				continue // of two servers' tools with one name the first server's is taken
			}
			seen[o.name] = true
			tools = append(tools, o.tool(m.cfg, func(ctx context.Context, c turn.Call) (turn.Output, error) {
				return m.call(ctx, c, l.key.server, o)
			}))
		}
	}
	slices.SortFunc(tools, func(x, y turn.Tool) int { return cmp.Compare(x.Name, y.Name) })
	return tools
}

// forget retires an agent's connections to servers that it no longer has.
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

// link returns the connection to a server, which may still be being made. An error
// says why there is none now.
func (m *Manager) link(ctx context.Context, a turn.Agent, s Server) (*link, error) {
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
		if reflect.DeepEqual(l.server, s) && l.network == a.Network && l.workspace == a.Workspace {
			l.used = m.cfg.Now()
			return l, nil
		}
		m.retire(l)
		delete(m.rests, k)
	}
	if r, resting := m.rests[k]; resting && m.cfg.Now().Before(r.until) && reflect.DeepEqual(r.server, s) {
		return nil, fmt.Errorf("%s; it is tried again in %d s", r.reason, int(r.until.Sub(m.cfg.Now()).Seconds())+1)
	}
	making, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cfg.Connect)
	l := &link{
		key: k, server: s, workspace: a.Workspace, network: a.Network, cancel: cancel, used: m.cfg.Now(),
		ready: make(chan struct{}), gone: make(chan struct{}), calls: map[*context.CancelCauseFunc]bool{},
	}
	m.links[k] = l
	m.work.Go(func() {
		defer cancel()
		m.connect(making, l)
	})
	return l, nil
}

// connect makes a connection, and watches it until it is over.
func (m *Manager) connect(ctx context.Context, l *link) {
	w, session, offers, refused, err := m.open(ctx, l)
	if err != nil {
		err = l.server.explain(ctx, err, w)
	}
	m.mu.Lock()
	if err == nil && l.retired {
		err = errRetired
	}
	l.err, l.wire, l.session, l.offers, l.refused, l.made = err, w, session, offers, refused, m.cfg.Now()
	if err != nil && m.links[l.key] == l {
		delete(m.links, l.key)
	}
	retired := l.retired
	m.mu.Unlock()
	if err != nil && !retired {
		m.failed(ctx, l.key, l.server, err)
	}
	close(l.ready)
	if err != nil {
		if session != nil {
			_ = session.Close() // it is over in any case
		}
		if w != nil {
			w.cut()
		}
		close(l.gone)
		return
	}
	m.mu.Lock()
	if len(refused) > 0 {
		m.cfg.Log.WarnContext(ctx, "tools of an MCP server are not used", "agent", l.agent, "server", l.key.server, "tools", len(offers), "refused", reasons(refused))
	}
	m.mu.Unlock()
	end := session.Wait()
	m.lost(ctx, l, end)
}

var errRetired = errors.New("the connection was closed")

// open starts a server or dials it, and asks for its tools.
func (m *Manager) open(ctx context.Context, l *link) (w wire, session *sdk.ClientSession, offers []offer, refused []refusal, err error) {
	if l.server.Command != "" {
		w, err = startProcess(ctx, l.server, l.workspace, l.network, m.cfg)
	} else {
		w, err = dial(l.server, m.cfg.Outbound, m.cfg.Call+writeWait)
	}
	if err != nil {
		return nil, nil, nil, nil, err
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "anima", Version: "1"}, &sdk.ClientOptions{
		Capabilities:           &sdk.ClientCapabilities{}, // it may ask us nothing
		MultiRoundTrip:         &sdk.MultiRoundTripOptions{Disabled: true},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) { l.stale.Store(true) },
	})
	if session, err = client.Connect(ctx, w.transport(), nil); err != nil {
		return w, nil, nil, nil, err
	}
	offers, refused, err = list(ctx, session, l.server.Name)
	return w, session, offers, refused, err
}

// list asks a server for its tools.
func list(ctx context.Context, session *sdk.ClientSession, server string) ([]offer, []refusal, error) {
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
	var over []refusal
	if n := len(listed); more || n > maxListed {
		listed = listed[:min(n, maxListed)]
		over = []refusal{{"all further", fmt.Sprintf("only the first %d tools of a server are looked at", len(listed))}}
	}
	offers, refused := offersOf(server, listed)
	return offers, append(refused, over...), nil
}

// offers returns what a server that is connected offers, asked for anew when it
// said that it changed.
func (m *Manager) offers(ctx context.Context, l *link) []offer {
	if l.err != nil {
		return nil
	}
	l.listing.Lock()
	defer l.listing.Unlock()
	if l.stale.Swap(false) {
		offers, refused, err := list(ctx, l.session, l.server.Name)
		if err != nil {
			l.stale.Store(true) // what was known is the best there is
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

// failed notes that a server cannot be used, and says so once for each reason.
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

// lost is called when a connection is over, at either end.
func (m *Manager) lost(ctx context.Context, l *link, end error) {
	if end == nil {
		end = errors.New("the server closed the connection")
	}
	last := l.server.explain(context.WithoutCancel(ctx), end, l.wire)
	l.wire.cut()
	m.mu.Lock()
	l.end = last
	mine := m.links[l.key] == l && !l.retired
	if mine {
		delete(m.links, l.key)
	}
	lasted := m.cfg.Now().Sub(l.made)
	if lasted > longRest {
		delete(m.rests, l.key) // its failures are long ago
	}
	m.mu.Unlock()
	if mine {
		m.failed(ctx, l.key, l.server, fmt.Errorf("it ended: %w", last))
	}
	close(l.gone)
}

// retire takes a connection away and closes it in the background. It is called
// under mu.
func (m *Manager) retire(l *link) {
	if l.retired {
		return
	}
	l.retired = true
	if m.links[l.key] == l {
		delete(m.links, l.key)
	}
	l.cancel()
	for cancel := range l.calls {
		(*cancel)(errRetired)
	}
	if !m.ended {
		m.work.Go(func() { l.close() })
	}
}

// close ends a connection: it asks, and after a while insists. connect's own
// goroutine does the rest.
func (l *link) close() {
	<-l.ready
	if l.err != nil {
		return
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_ = l.session.Close() // what it says of its end is of no use
	}()
	insist := time.NewTimer(3 * time.Second)
	defer insist.Stop()
	select {
	case <-asked:
	case <-insist.C:
	}
	l.wire.cut()
	<-asked
	<-l.gone
}

// call makes one call of a tool.
func (m *Manager) call(ctx context.Context, c turn.Call, server string, o offer) (turn.Output, error) {
	s, err := m.registry.get(c.Agent.ID, server)
	if err != nil {
		return turn.Output{}, fmt.Errorf("the MCP server %s: %w", server, err)
	}
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, m.cfg.Call)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	for retry := false; ; retry = true {
		l, err := m.take(ctx, c.Agent, s, &stop)
		if err != nil {
			if outer.Err() != nil {
				return turn.Output{}, context.Cause(outer)
			}
			return turn.Output{}, fmt.Errorf("the MCP server %s cannot be used now: %w", server, err)
		}
		res, err := m.send(ctx, l, c, o)
		m.give(l, &stop)
		switch {
		case err == nil:
			return output(s, o, res)
		case outer.Err() != nil:
			return turn.Output{}, context.Cause(outer)
		case errors.Is(context.Cause(ctx), errRetired):
			return turn.Output{}, fmt.Errorf("the connection to the MCP server %s was closed during the call; the call may or may not have happened", server)
		case ctx.Err() != nil:
			return turn.Output{}, fmt.Errorf("the MCP server %s did not answer within %s; the call may or may not have happened: %w", server, m.cfg.Call, context.DeadlineExceeded)
		case errors.Is(err, sdk.ErrSessionMissing) && !retry:
			// The server was restarted: it refused the call unseen.
			select {
			case <-l.gone:
			case <-ctx.Done():
			}
			m.relent(l.key)
			continue
		}
		return turn.Output{}, l.failure(ctx, err)
	}
}

// relent forgets that a server failed.
func (m *Manager) relent(k key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.rests, k)
}

// take returns a connection that is made, and counts a call on it.
func (m *Manager) take(ctx context.Context, a turn.Agent, s Server, stop *context.CancelCauseFunc) (*link, error) {
	l, err := m.link(ctx, a, s)
	if err != nil {
		return nil, err
	}
	select {
	case <-l.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case l.err != nil:
		return nil, l.err
	case l.retired:
		return nil, errRetired
	}
	l.calls[stop] = true
	return l, nil
}

// give takes a call off a connection.
func (m *Manager) give(l *link, stop *context.CancelCauseFunc) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(l.calls, stop)
	l.used = m.cfg.Now()
}

// send makes the call under a span of its own, whose context goes with it.
func (m *Manager) send(ctx context.Context, l *link, c turn.Call, o offer) (_ *sdk.CallToolResult, err error) {
	ctx, span := m.cfg.Tracer.Start(ctx, "tools/call "+o.name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("mcp.method.name", "tools/call"), attribute.String("gen_ai.operation.name", telemetry.OperationExecuteTool),
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
	args, err := decode(c.Args)
	if err != nil {
		return nil, err
	}
	res, err := l.session.CallTool(ctx, &sdk.CallToolParams{Meta: meta, Name: o.remote, Arguments: args})
	if err == nil && res.IsError {
		telemetry.Fail(span, "tool_error", "the tool reported an error")
	}
	return res, err
}

// failure says why a call has no result. Only a server that answered with an error
// certainly did not do what it was asked, or says so itself.
func (l *link) failure(ctx context.Context, err error) error {
	if _, answered := errors.AsType[*jsonrpc.Error](err); answered {
		return fmt.Errorf("the MCP server %s refused the call: %w", l.server.Name, l.server.explain(ctx, err, nil))
	}
	wait := grace
	if l.server.Command != "" {
		wait = 5 * time.Second // its process is being ended, after which this always comes
	}
	select {
	case <-l.gone:
		err = l.end
	case <-time.After(wait):
	}
	return fmt.Errorf("the MCP server %s gave no result, and the call may or may not have happened: %w", l.server.Name, l.server.explain(ctx, err, nil))
}

// explain is an error for the model and the log: without secrets, without what
// somebody would hide in it, and of a length that can be read.
func (s Server) explain(ctx context.Context, err error, w wire) error {
	if errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		return errors.New("it did not answer in time")
	}
	text := err.Error()
	if w != nil {
		if last := w.last(); last != "" {
			text += "; its last words: " + last
		}
	}
	return errors.New(defused(s.redact(text), 1_000))
}

func reasons(refused []refusal) string {
	var all []string
	for _, r := range refused[:min(len(refused), 10)] {
		all = append(all, r.tool+": "+r.reason)
	}
	if more := len(refused) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, "; ")
}
