// Package conway is a client for the HTTP API of Conway, which rents sandboxes and
// registers domains for the operator's account. It repeats requests that may succeed
// later, and stops asking a route that fails. It must not know agents, money of the
// ledger, or what was ordered before.
package conway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/telemetry"
	"github.com/anima-run/anima/pkg/wait"
)

// Limits of requests (docs/reference/treasury.md, Conway).
const (
	retries    = 3                // after the first attempt
	attempt    = 30 * time.Second // time limit of one attempt
	firstPause = time.Second      // upper bound of the first pause; it doubles
	longestGap = 30 * time.Second // upper bound of a pause
	longestAsk = time.Minute      // largest Retry-After that is waited for
	maxAnswer  = 1 << 20          // bytes
)

// Options are the options of a client.
type Options struct {
	URL string        // of the API, without a path: https, or http on loopback
	Key config.Secret // API key of the operator
	Now func() time.Time

	// Pause waits between attempts; nil: [wait.For].
	Pause func(context.Context, time.Duration) error
	// Random returns a number in [0, 1) for the jitter; nil: a random one.
	Random func() float64
}

// Client is a client of the API. It is safe for concurrent use.
type Client struct {
	base     *url.URL
	key      func() string // a function, because fmt prints fields
	http     *http.Client
	now      func() time.Time
	pause    func(context.Context, time.Duration) error
	random   func() float64
	breakers breakers
}

// New returns a client. Errors: a URL that is not an address of a server.
func New(o Options) (*Client, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("the address of Conway is not one such as https://api.conway.tech")
	}
	ip := net.ParseIP(u.Hostname())
	if local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); u.Scheme != "https" && (u.Scheme != "http" || !local) {
		return nil, errors.New("the address of Conway must begin with https://, because requests contain the key")
	}
	if o.Key.Reveal() == "" {
		return nil, errors.New("there is no key for Conway")
	}
	c := &Client{base: u, key: o.Key.Reveal, now: o.Now, pause: o.Pause, random: o.Random, breakers: breakers{now: o.Now}}
	if c.pause == nil {
		c.pause = wait.For
	}
	if c.random == nil {
		c.random = rand.Float64
	}
	// A redirect could send the key to another host.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.http = &http.Client{Transport: telemetry.NewTransport(nil), CheckRedirect: stay}
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Failure is the error of a request.
type Failure struct {
	Status int    // of the last answer; 0: none
	Text   string // of the answer's error, shortened
	// Unknown means that the server may have executed the request.
	Unknown           bool
	Required, Balance int64         // cents, if the account of the operator does not suffice (402)
	Wait              time.Duration // after which it may be repeated; 0: unknown
}

// Error returns a text without credentials.
func (f *Failure) Error() string {
	if f.Status == 0 {
		return "conway: " + f.Text
	}
	return fmt.Sprintf("conway: status %d: %s", f.Status, f.Text)
}

// call is one request. route names it for the breaker, without ids.
type call struct {
	method, route string
	path          []string // segments, escaped by the client
	query         url.Values
	body          any
	key           string // idempotency key; required for a change
}

// do makes a request with its attempts and decodes the answer into out, which may be nil.
// Errors: [Failure].
func (c *Client) do(ctx context.Context, r call, out any) error {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return err
		}
	}
	key := c.base.Host + " " + r.route
	sent := false // an attempt may have been executed
	for n := 0; ; n++ {
		probe, err := c.breakers.enter(key)
		if err != nil {
			return &Failure{Text: err.Error(), Unknown: sent, Wait: err.Wait}
		}
		data, failure := c.once(ctx, r, body)
		again := failure != nil && (failure.Status == 0 || retryable(failure.Status))
		// A 429 is an answer: the API works, and asks this one caller to wait.
		failed := again && failure.Status != http.StatusTooManyRequests && ctx.Err() == nil
		c.breakers.leave(key, probe, failed, ctx.Err() != nil)
		if failure == nil {
			if out == nil || len(data) == 0 {
				return nil
			}
			if err := json.Unmarshal(data, out); err != nil {
				return &Failure{Text: "the answer is not JSON of this route: " + err.Error(), Unknown: true}
			}
			return nil
		}
		sent = sent || failure.Unknown
		failure.Unknown = sent // a refusal may be the consequence of an attempt without an answer
		if !again || n == retries || ctx.Err() != nil || failure.Wait > longestAsk {
			return failure
		}
		if err := c.pause(ctx, max(failure.Wait, c.jitter(n))); err != nil {
			return failure
		}
	}
}

// jitter returns a pause between 0 and an upper bound that doubles with each attempt (full
// jitter), so that clients that failed together do not come back together.
func (c *Client) jitter(n int) time.Duration {
	return time.Duration(c.random() * float64(min(firstPause<<n, longestGap)))
}

func retryable(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

func (c *Client) once(ctx context.Context, r call, body []byte) ([]byte, *Failure) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	u := c.base.JoinPath(r.path...)
	u.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, &Failure{Text: "the request cannot be made"}
	}
	req.GetBody = nil                        // the transport must not repeat a request beside this client
	req.Header.Set("Authorization", c.key()) // without a scheme
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		req.Header.Set("Idempotency-Key", r.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var dial *net.OpError
		refused := errors.As(err, &dial) && dial.Op == "dial"
		return nil, &Failure{Text: "no answer: " + reason(err), Unknown: !refused}
	}
	defer func() { _ = resp.Body.Close() }() // read as far as it is used
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, &Failure{Text: "the answer broke off: " + reason(err), Unknown: true}
	case len(data) > maxAnswer:
		return nil, &Failure{Text: "the answer is too long", Status: http.StatusOK, Unknown: true}
	case resp.StatusCode >= 200 && resp.StatusCode < 300:
		return data, nil
	}
	return nil, c.refused(resp, data)
}

// refused reads an error of the server. A status of 500 and more, and a redirect, do not
// tell whether the request was executed.
func (c *Client) refused(resp *http.Response, data []byte) *Failure {
	f := &Failure{Status: resp.StatusCode, Unknown: resp.StatusCode >= 500, Text: shorten(string(data)), Wait: retryAfter(resp.Header.Get("Retry-After"), c.now())}
	var body struct {
		Error   any    `json:"error"`
		Message string `json:"message"`
		Details struct {
			Required int64 `json:"required_cents"`
			Balance  int64 `json:"current_balance_cents"`
		} `json:"details"`
	}
	if json.Unmarshal(data, &body) == nil {
		f.Required, f.Balance = body.Details.Required, body.Details.Balance
		if text, ok := body.Error.(string); ok && text != "" {
			f.Text = shorten(text)
		} else if body.Message != "" {
			f.Text = shorten(body.Message)
		}
	}
	return f
}

// reason returns the text of a transport error without the URL, which has ids of agents.
func reason(err error) string {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "the time limit has passed"
	}
	return shorten(err.Error())
}

// shorten makes a text of the server fit for an error and a row: one line, at most 200 bytes
// and an ellipsis.
func shorten(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "")
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

func retryAfter(header string, now time.Time) time.Duration {
	var seconds int64
	if _, err := fmt.Sscanf(header, "%d", &seconds); err == nil && seconds >= 0 && seconds < 1<<31 {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// Explain returns the error of a failed request for an agent.
func Explain(err error) error {
	f, ok := errors.AsType[*Failure](err)
	if !ok {
		return err
	}
	switch {
	case f.Unknown:
		return &api.Error{Code: api.Unavailable, Message: "Conway gave no clear answer (" + f.Text + ")", Next: "it is asked again; look at the list before you repeat the call", RetryAfter: 60_000}
	case f.Status == http.StatusPaymentRequired:
		return &api.Error{Code: api.Unavailable, Message: "the operator's account at Conway does not suffice", Next: "the operator has to add credits there", RetryAfter: 3_600_000}
	case f.Status == http.StatusUnauthorized || f.Status == http.StatusForbidden:
		return &api.Error{Code: api.Unavailable, Message: "Conway refuses the operator's key", Next: "the operator has to correct ANIMA_TREASURY_CONWAY_KEY"}
	case f.Status == http.StatusNotFound:
		return &api.Error{Code: api.Invalid, Message: "Conway does not know it: " + f.Text, Next: "look at the list first"}
	case f.Status == 0 || retryable(f.Status):
		return &api.Error{Code: api.Unavailable, Message: "Conway does not answer (" + f.Text + ")", Next: "try again later", RetryAfter: max(1000, f.Wait.Milliseconds())}
	}
	return &api.Error{Code: api.Invalid, Message: "Conway refused: " + f.Text, Next: "correct the arguments"}
}
