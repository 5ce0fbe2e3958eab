package bus

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
)

// Dialing says how to reach NATS.
type Dialing struct {
	URL       string // nats://host:port, several separated by commas; ignored in process
	InProcess nats.InProcessConnProvider
	Token     string // "" where the server asks for none
	Creds     string // path of a credentials file; "" for none
	Name      string // of the connection, for the server's lists
	Wait      bool   // keep trying when the server is not there yet
	Log       *slog.Logger
}

// Dial connects to NATS. With Wait it returns at once and the connection comes
// up when the server does, so nothing depends on the order of start; without, a
// server that does not answer is an error that says what to do.
func Dial(d Dialing) (*nats.Conn, error) {
	opts := []nats.Option{
		nats.Name(d.Name),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 500*time.Millisecond),
		nats.RetryOnFailedConnect(d.Wait),
		nats.Timeout(5 * time.Second),
		nats.DrainTimeout(10 * time.Second),
		nats.SyncQueueLen(256), // the default allocates half a megabyte for each subscription
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			subject := ""
			if s != nil {
				subject = s.Subject
			}
			d.Log.Error("nats error", "subject", subject, "err", err)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				d.Log.Warn("nats disconnected", "err", err)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) { d.Log.Info("nats connected again", "server", c.ConnectedServerName()) }),
	}
	if d.Token != "" {
		opts = append(opts, nats.Token(d.Token))
	}
	if d.Creds != "" {
		opts = append(opts, nats.UserCredentials(d.Creds))
	}
	url := d.URL
	if d.InProcess != nil {
		url, opts = "", append(opts, nats.InProcessServer(d.InProcess))
	}
	nc, err := nats.Connect(url, opts...)
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return nil, fmt.Errorf("NATS at %s refused the credentials: %w; check the token or the credentials file", redacted(url), err)
	case err != nil:
		return nil, fmt.Errorf("NATS at %s: %w; start it, or point ANIMA_NATS_URL at a running one", redacted(url), err)
	}
	return nc, nil
}
