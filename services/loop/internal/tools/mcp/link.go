package mcp

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/anima-run/anima/services/loop/internal/engine"
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

	changing atomic.Bool // see [bounded]

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
		w, err = startProcess(ctx, l.server, l.agent, m.cfg, &l.changing)
	} else {
		w, err = dial(l.server, m.cfg.Outbound, m.cfg.Call+writeWait)
	}
	if err != nil {
		return nil, nil, nil, nil, err
	}
	if session, err = l.client().Connect(ctx, w.transport(), nil); err != nil {
		return w, nil, nil, nil, err
	}
	offers, refused, err = list(ctx, session, w, l.server.Name)
	return w, session, offers, refused, err
}

func (l *link) client() *sdk.Client {
	c := sdk.NewClient(&sdk.Implementation{Name: "anima", Version: "1"}, &sdk.ClientOptions{
		Capabilities:   &sdk.ClientCapabilities{}, // the server may not send requests
		MultiRoundTrip: &sdk.MultiRoundTripOptions{Disabled: true},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {
			l.changing.Store(false)
			l.stale.Store(true)
		},
	})
	c.AddReceivingMiddleware(onlyUsed)
	return c
}

// list returns the tools that a server offers, of the first maxListed tools that it lists.
// It requests no further page after maxFrame bytes, because the library keeps all pages.
func list(ctx context.Context, session *sdk.ClientSession, w wire, server string) ([]offer, []string, error) {
	var listed []*sdk.Tool
	cursor, more, before := "", true, w.received()
	for page := 0; more && page < maxPages && len(listed) <= maxListed && w.received()-before < maxFrame; page++ {
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
		offers, refused, err := list(ctx, l.session, l.wire, l.server.Name)
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

// resetBackoff resets the backoff of a server.
func (m *Manager) resetBackoff(k key) {
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
