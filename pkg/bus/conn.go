package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// Dialing says how to reach NATS.
type Dialing struct {
	URL       string // nats://host:port or tls://host:port, several separated by commas; ignored in process
	InProcess nats.InProcessConnProvider
	Token     string // "" where the server asks for none
	Creds     string // path of a credentials file; "" for none
	NKey      string // seed of the user's nkey; "" for none
	CA        string // path of the certificates that a tls server is checked against; "" for the machine's own
	Name      string // of the connection, for the server's lists; with an nkey also of its inboxes, see [PermissionsOf]
	Wait      bool   // keep trying when the server is not there yet
	Outside   bool   // of the servers' network: only what URL names is tried, not the addresses that servers tell of each other
	Log       *slog.Logger
}

// A dead peer that says nothing, as on a machine that lost its power, is given
// up after three of these. The library's own two minutes would hold every turn.
const pingInterval = 2 * time.Second

// moveTime is how long a connection tries to find another server when its own
// is leaving. NATS gives its clients at least that long.
const moveTime = 25 * time.Second

// Conn is a process's connection to NATS, which the buses of its services share.
// It outlives its server: one that is about to stop says so ("lame duck"), and
// Conn opens a second connection elsewhere, lets everybody move over, and closes
// the first when nothing is under way on it any more. A server that goes without
// a word is reconnected from by the library. It is safe for concurrent use.
type Conn struct {
	d    Dialing
	ctx  context.Context //nolint:containedctx // until Close
	stop context.CancelFunc

	mu    sync.Mutex
	now   *link
	links map[*link]struct{} // those not closed yet
	moves sync.WaitGroup
}

// link is one connection of a Conn. Who uses it holds it, so that it is closed
// after the last.
type link struct {
	conn *Conn
	nc   *nats.Conn
	left context.Context //nolint:containedctx // ends when another link stands in its place
	over context.CancelFunc

	refusals refusals // of questions under way

	// Guarded by conn.mu.
	holders int
	moving  bool
	up      context.Context //nolint:containedctx // ends when the connection breaks
	down    context.CancelFunc
}

// Dial connects to NATS. With Wait it returns at once and the connection comes
// up when the server does, so nothing depends on the order of start; without, a
// server that does not answer is an error that says what to do.
func Dial(d Dialing) (*Conn, error) {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	c := &Conn{d: d, links: map[*link]struct{}{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	l, err := c.dial(d.Wait)
	if err != nil {
		c.stop()
		return nil, err
	}
	c.now = l
	return c, nil
}

// Close closes the connection, whatever is under way.
func (c *Conn) Close() {
	c.stop()
	c.moves.Wait()
	c.mu.Lock()
	links := make([]*link, 0, len(c.links))
	for l := range c.links {
		links = append(links, l)
	}
	c.mu.Unlock()
	for _, l := range links {
		l.nc.Close()
		l.over()
	}
}

// Connected reports whether the connection is up.
func (c *Conn) Connected() bool {
	l := c.hold()
	defer l.release()
	return l.nc.IsConnected()
}

// hold returns the link of now, held.
func (c *Conn) hold() *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.holders++
	return c.now
}

// hold holds a link that the caller knows to be held.
func (l *link) hold() {
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	l.holders++
}

func (l *link) release() {
	l.conn.mu.Lock()
	l.holders--
	last := l.holders == 0 && l.left.Err() != nil
	l.conn.mu.Unlock()
	if last {
		l.leave()
	}
}

// leave closes a link that nobody holds, after what lies in its buffers.
func (l *link) leave() {
	if err := l.nc.Drain(); err != nil {
		l.nc.Close()
	}
}

// unbroken ends when the connection breaks, after which an answer to what was
// asked before does not come any more.
func (l *link) unbroken() context.Context {
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	return l.up
}

func (c *Conn) dial(wait bool) (*link, error) {
	l := &link{conn: c}
	l.left, l.over = context.WithCancel(context.Background())
	l.up, l.down = context.WithCancel(context.Background())
	opts, err := c.options(l, wait)
	if err != nil {
		return nil, err
	}
	url := c.d.URL
	if c.d.InProcess != nil {
		url, opts = "", append(opts, nats.InProcessServer(c.d.InProcess))
	}
	l.nc, err = nats.Connect(url, opts...)
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return nil, fmt.Errorf("NATS at %s refused the credentials: %w; check the token, the nkey or the credentials file", redacted(url), err)
	case err != nil:
		return nil, fmt.Errorf("NATS at %s: %w; start it, or point ANIMA_NATS_URL at a running one", redacted(url), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !l.nc.IsClosed() {
		c.links[l] = struct{}{}
	}
	return l, nil
}

func (c *Conn) options(l *link, wait bool) ([]nats.Option, error) {
	log := c.d.Log
	opts := []nats.Option{
		nats.Name(c.d.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 500*time.Millisecond),
		nats.RetryOnFailedConnect(wait),
		// A try to connect ends soon, its lookup of a name included: after a machine's
		// death names, and addresses that stand for several servers, lead nowhere for
		// a while. The servers' own addresses, which the first of them told, do not.
		nats.Timeout(2 * time.Second),
		nats.SkipHostLookup(),
		nats.DrainTimeout(10 * time.Second),
		nats.PingInterval(pingInterval),
		nats.SyncQueueLen(256), // the default allocates half a megabyte for each subscription
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			subject := ""
			if s != nil {
				subject = s.Subject
			}
			if errors.Is(err, nats.ErrPermissionViolation) {
				log.Error("nats refuses this user; its permissions are generated from api.AccessOf", "err", err)
				l.refusals.tell(err)
				return
			}
			log.Error("nats error", "subject", subject, "err", err)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			c.mu.Lock()
			down := l.down
			l.up, l.down = context.WithCancel(context.Background())
			c.mu.Unlock()
			down()
			if err != nil {
				log.Warn("nats disconnected", "err", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) { log.Info("nats connected again", "server", nc.ConnectedServerName()) }),
		nats.LameDuckModeHandler(func(*nats.Conn) { c.move(l) }),
		nats.ClosedHandler(func(*nats.Conn) {
			c.mu.Lock()
			defer c.mu.Unlock()
			l.down()
			delete(c.links, l)
		}),
	}
	if c.d.Outside {
		opts = append(opts, nats.IgnoreDiscoveredServers())
	}
	if c.d.Token != "" {
		opts = append(opts, nats.Token(c.d.Token))
	}
	if c.d.Creds != "" {
		opts = append(opts, nats.UserCredentials(c.d.Creds))
	}
	if c.d.CA != "" {
		opts = append(opts, nats.RootCAs(c.d.CA))
	}
	if c.d.NKey != "" {
		pair, err := nkeys.FromSeed([]byte(c.d.NKey))
		if err != nil {
			return nil, errors.New("the NATS nkey is no seed: it is one line that begins with SU") // never what it is
		}
		public, err := pair.PublicKey()
		if err != nil {
			return nil, fmt.Errorf("the NATS nkey: %w", err)
		}
		opts = append(opts, nats.Nkey(public, pair.Sign), nats.CustomInboxPrefix(inboxes+"."+c.d.Name))
	}
	return opts, nil
}

// move opens a link to another server in place of l. Dying in here loses
// nothing: l serves until its server closes it.
func (c *Conn) move(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.moving || c.now != l || c.ctx.Err() != nil {
		return
	}
	l.moving = true
	c.moves.Go(func() {
		from := l.nc.ConnectedServerName()
		c.d.Log.Info("nats server is leaving, moving to another", "server", from)
		next := c.elsewhere(from)
		c.mu.Lock()
		l.moving = false
		if next == nil {
			c.mu.Unlock()
			c.d.Log.Warn("no other nats server, staying until this one is back", "server", from)
			return
		}
		c.now = next
		last := l.holders == 0
		c.mu.Unlock()
		l.over()
		c.d.Log.Info("nats moved", "server", next.nc.ConnectedServerName())
		if last {
			l.leave()
		}
	})
}

// elsewhere connects to a server other than the named one, nil if there is none.
// The leaving one may still take connections for a moment.
func (c *Conn) elsewhere(from string) *link {
	ctx, cancel := context.WithTimeout(c.ctx, moveTime)
	defer cancel()
	for try := 0; ; try++ {
		l, err := c.dial(false)
		if err == nil && l.nc.ConnectedServerName() != from {
			return l
		}
		if err == nil {
			l.nc.Close()
		}
		if pause(ctx, backoff(try, 50*time.Millisecond, time.Second)) != nil {
			return nil
		}
	}
}
