package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/anima-run/anima/pkg/wait"
)

// DialOptions holds the options of [Dial].
type DialOptions struct {
	URL       string // nats://host:port or tls://host:port, several separated by commas; ignored with InProcess
	InProcess nats.InProcessConnProvider
	Token     string // "" where the server requires none
	Creds     string // path of a credentials file; "" for none
	NKey      string // seed of the user's nkey; "" for none
	CA        string // path of the certificates that a tls server is verified with; "" for the system's
	Name      string // name of the connection in the server's lists; with an nkey also part of its inbox prefix, see [PermissionsOf]
	Wait      bool   // return at once and retry until the server can be reached
	Outside   bool   // outside the servers' network: connect only to the addresses of URL, not to those that servers advertise
	Log       *slog.Logger
}

// pingInterval is the interval of pings on a connection. A peer that does not answer, as
// after a power failure, is disconnected after three of them. With the library's default
// of two minutes, every turn would block for that long.
const pingInterval = 2 * time.Second

// moveTime is how long a connection tries to reach another server when its own shuts
// down. NATS servers keep their clients connected for at least that long.
const moveTime = 25 * time.Second

// Conn is a process's connection to NATS, shared by the buses of its services. It
// continues across the shutdown of a server: when its server announces a shutdown ("lame
// duck"), Conn opens a connection to another server, its users move to that one, and the
// old connection is closed after its last use has ended. After a server crash the nats.go
// library reconnects. A Conn is safe for concurrent use.
type Conn struct {
	d    DialOptions
	ctx  context.Context //nolint:containedctx // until Close
	stop context.CancelFunc

	mu          sync.Mutex
	now         *connection
	connections map[*connection]struct{} // not yet closed
	moves       sync.WaitGroup
}

// connection is one NATS connection of a Conn. Its users hold it; a connection that has
// been replaced is closed when the last of them releases it.
type connection struct {
	conn         *Conn
	nc           *nats.Conn
	replaced     context.Context //nolint:containedctx // ends when another connection has replaced this one
	markReplaced context.CancelFunc

	refusals refusals    // watches of requests in progress
	refused  atomic.Bool // the server has refused the credentials since the connection was up

	// Guarded by conn.mu.
	holders int
	moving  bool
	up      context.Context //nolint:containedctx // ends when the connection breaks; each disconnect makes a new one
	down    context.CancelFunc
}

// Dial connects to NATS. With Wait it returns at once and connects in the background, so
// that services and servers may start in any order. Without Wait, a server that cannot be
// reached is an error.
func Dial(d DialOptions) (*Conn, error) {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	c := &Conn{d: d, connections: map[*connection]struct{}{}}
	c.ctx, c.stop = context.WithCancel(context.Background())
	cn, err := c.dial(d.Wait)
	if err != nil {
		c.stop()
		return nil, err
	}
	c.now = cn
	return c, nil
}

// Close closes all connections of c at once, even those in use.
func (c *Conn) Close() {
	c.stop()
	c.moves.Wait()
	c.mu.Lock()
	connections := slices.Collect(maps.Keys(c.connections))
	c.mu.Unlock()
	for _, cn := range connections {
		cn.nc.Close()
		cn.markReplaced()
	}
}

// Connected reports whether the current connection is up.
func (c *Conn) Connected() bool {
	cn := c.hold()
	defer cn.release()
	return cn.nc.IsConnected()
}

// Refused reports whether the connection is down because the server refuses the
// credentials. A connection with Wait tries again until the server accepts them.
func (c *Conn) Refused() bool {
	cn := c.hold()
	defer cn.release()
	return !cn.nc.IsConnected() && refusesCredentials(cn.nc.LastError())
}

// hold returns the current connection and holds it. The caller releases it.
func (c *Conn) hold() *connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.holders++
	return c.now
}

// hold adds a holder to a connection that the caller already holds.
func (cn *connection) hold() {
	cn.conn.mu.Lock()
	defer cn.conn.mu.Unlock()
	cn.holders++
}

func (cn *connection) release() {
	cn.conn.mu.Lock()
	cn.holders--
	last := cn.holders == 0 && cn.replaced.Err() != nil
	cn.conn.mu.Unlock()
	if last {
		cn.drain()
	}
}

// drain drains and closes a connection that has no holders. Buffered messages are still sent
// and handled.
func (cn *connection) drain() {
	if err := cn.nc.Drain(); err != nil {
		cn.nc.Close()
	}
}

// untilBroken returns a context that ends when the connection breaks. Answers to requests
// that were sent before do not arrive after that.
func (cn *connection) untilBroken() context.Context {
	cn.conn.mu.Lock()
	defer cn.conn.mu.Unlock()
	return cn.up
}

// errAway is the error of a message that was not sent because the connection is down.
var errAway = unavailable("NATS is not connected", "check that NATS is up")

// awaitUp waits until the connection is up. The nats.go library would keep a message that is
// published before: it would be sent, and executed, when its sender has given up long ago,
// and large requests would use up the buffer, which acknowledgements need. awaitUp returns
// errAway if ctx ends, gone is closed or another connection replaces this one.
func (cn *connection) awaitUp(ctx context.Context, gone <-chan struct{}) error {
	if cn.nc.IsConnected() {
		return nil
	}
	changes := cn.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer cn.nc.RemoveStatusListener(changes)
	for !cn.nc.IsConnected() && !cn.nc.IsClosed() {
		select {
		case <-changes:
			continue
		case <-cn.replaced.Done():
		case <-gone:
		case <-ctx.Done():
		}
		return errAway
	}
	return nil
}

func (c *Conn) dial(wait bool) (*connection, error) {
	cn := &connection{conn: c}
	cn.replaced, cn.markReplaced = context.WithCancel(context.Background())
	cn.up, cn.down = context.WithCancel(context.Background())
	opts, err := c.options(cn, wait)
	if err != nil {
		return nil, err
	}
	servers := c.d.URL
	if c.d.InProcess != nil {
		servers, opts = "", append(opts, nats.InProcessServer(c.d.InProcess))
	}
	cn.nc, err = nats.Connect(servers, opts...)
	if _, ok := errors.AsType[*url.Error](err); ok {
		err = errURL // the library's error quotes the URL with its credentials
	}
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return nil, fmt.Errorf("NATS at %s refused the credentials: %w; check the token, the nkey or the credentials file", RedactURL(servers), err)
	case err != nil:
		return nil, fmt.Errorf("NATS at %s: %w; start it, or point ANIMA_NATS_URL at a running one", RedactURL(servers), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !cn.nc.IsClosed() {
		c.connections[cn] = struct{}{}
	}
	return cn, nil
}

func (c *Conn) options(cn *connection, wait bool) ([]nats.Option, error) {
	log := c.d.Log
	opts := []nats.Option{
		nats.Name(c.d.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 500*time.Millisecond),
		nats.RetryOnFailedConnect(wait),
		// The timeout of a connection attempt covers its name lookup. After the crash of
		// a machine, names and addresses that stand for several servers may not work for
		// a while. The servers' own addresses, which the first server has advertised, do.
		nats.Timeout(2 * time.Second),
		nats.SkipHostLookup(),
		nats.DrainTimeout(10 * time.Second),
		nats.PingInterval(pingInterval),
		nats.SyncQueueLen(256), // the default allocates 0.5 MB for each subscription
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			subject := ""
			if s != nil {
				subject = s.Subject
			}
			if errors.Is(err, nats.ErrPermissionViolation) {
				log.Error("nats permission denied for this user, its permissions are generated from api.AccessOf", "err", err)
				cn.refusals.report(err)
				return
			}
			if refusesCredentials(err) {
				if !cn.refused.Swap(true) { // each server refuses them several times a second
					log.Error("NATS refuses the credentials, retrying; check the token, the nkey or the credentials file", "err", err)
				}
				return
			}
			log.Error("nats error", "subject", subject, "err", err)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			c.mu.Lock()
			down := cn.down
			cn.up, cn.down = context.WithCancel(context.Background())
			c.mu.Unlock()
			down()
			if err != nil {
				log.Warn("nats disconnected", "err", err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			cn.refused.Store(false)
			log.Info("nats reconnected", "server", nc.ConnectedServerName())
		}),
		nats.LameDuckModeHandler(func(*nats.Conn) { c.move(cn) }),
		nats.ClosedHandler(func(*nats.Conn) {
			c.mu.Lock()
			defer c.mu.Unlock()
			cn.down()
			delete(c.connections, cn)
		}),
	}
	if c.d.Wait {
		// Otherwise the connection would be closed for ever when a server refuses the
		// credentials twice, as it does while they are changed on both sides.
		opts = append(opts, nats.IgnoreAuthErrorAbort())
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
			return nil, errors.New("the NATS nkey is not a seed: use one line that begins with SU") // the error must not contain the seed
		}
		public, err := pair.PublicKey()
		if err != nil {
			return nil, fmt.Errorf("the NATS nkey: %w", err)
		}
		opts = append(opts, nats.Nkey(public, pair.Sign), nats.CustomInboxPrefix(inboxes+"."+c.d.Name))
	}
	return opts, nil
}

// move replaces cn by a connection to another server, in the background. If there is none, cn
// stays in use; it works until its server closes it.
func (c *Conn) move(cn *connection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cn.moving || c.now != cn || c.ctx.Err() != nil {
		return
	}
	cn.moving = true
	c.moves.Go(func() {
		from := cn.nc.ConnectedServerName()
		c.d.Log.Info("nats server is shutting down, connecting to another server", "server", from)
		next := c.dialOther(from)
		c.mu.Lock()
		cn.moving = false
		if next == nil {
			c.mu.Unlock()
			c.d.Log.Warn("no other nats server available, keeping the connection", "server", from)
			return
		}
		c.now = next
		last := cn.holders == 0
		c.mu.Unlock()
		cn.markReplaced()
		c.d.Log.Info("nats connection moved to another server", "server", next.nc.ConnectedServerName())
		if last {
			cn.drain()
		}
	})
}

// dialOther connects to a server other than the named one. It retries for [moveTime],
// because a server that shuts down may still accept connections, and returns nil if it
// reaches no other server.
func (c *Conn) dialOther(from string) *connection {
	ctx, cancel := context.WithTimeout(c.ctx, moveTime)
	defer cancel()
	for try := 0; ; try++ {
		cn, err := c.dial(false)
		if err == nil && cn.nc.ConnectedServerName() != from {
			return cn
		}
		if err == nil {
			cn.nc.Close()
		}
		if wait.For(ctx, backoff(try, 50*time.Millisecond, time.Second)) != nil {
			return nil
		}
	}
}

// refusesCredentials reports whether err is the refusal of a server to let the user in.
func refusesCredentials(err error) bool {
	for _, refusal := range []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired} {
		if errors.Is(err, refusal) {
			return true
		}
	}
	return false
}

var errURL = errors.New("the URL is malformed, its credentials may need percent-encoding")

// RedactURL returns URLs of NATS servers, separated by commas, without their credentials.
// It removes the text before the last @ of each URL, whether or not the URL is valid. A
// user without a password is removed, too: NATS takes it as a token.
func RedactURL(urls string) string {
	parts := strings.Split(urls, "://")
	for i, p := range parts {
		parts[i] = p[strings.LastIndexByte(p, '@')+1:]
	}
	return strings.Join(parts, "://")
}
