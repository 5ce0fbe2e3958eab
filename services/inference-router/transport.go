package router

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// promptBytes is the size of the write buffer of a connection to a provider, in bytes.
// Most prompts fit and are sent in one write. A longer prompt takes two writes and a
// second buffer.
const promptBytes = 32 << 10

// transport returns a transport that keeps an idle connection for each worker, so that a
// burst of calls opens no new connections. An HTTP/2 connection on which nothing was received
// for a time is checked, and closed if the server does not answer in that time again.
func transport(workers int, silence time.Duration) http.RoundTripper {
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxIdleConns: 2 * workers, MaxIdleConnsPerHost: workers,
		IdleConnTimeout: 90 * time.Second, DialContext: (&net.Dialer{Timeout: connectTimeout}).DialContext, TLSHandshakeTimeout: connectTimeout,
		ForceAttemptHTTP2: true, HTTP2: &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: silence}, WriteBufferSize: promptBytes,
	}
	return connecting{t}
}

// connectTimeout is the time limit of each part of connecting to a provider.
const connectTimeout = 10 * time.Second

// maxSilence is how long nothing may be received on an HTTP/2 connection until it is checked.
// All calls to a server share one: without the check, calls would be made on a connection that
// a router or firewall has forgotten until the kernel gives it up after some 15 minutes.
const maxSilence = 15 * time.Second

// connecting marks the errors of requests that had no connection with
// [provider.ErrNotConnected].
type connecting struct{ base http.RoundTripper }

func (c connecting) RoundTrip(r *http.Request) (*http.Response, error) {
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	res, err := c.base.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if _, ok := errors.AsType[tls.RecordHeaderError](err); err == nil || connected.Load() || ok { // http.Client describes the latter
		return res, err
	}
	return res, notConnectedError{err}
}

// CloseIdleConnections is called by http.Client.
func (c connecting) CloseIdleConnections() {
	if base, ok := c.base.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

type notConnectedError struct{ error }

func (e notConnectedError) Unwrap() []error { return []error{e.error, provider.ErrNotConnected} }
