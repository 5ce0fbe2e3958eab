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
// burst of calls opens no new connections.
func transport(workers int) http.RoundTripper {
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, MaxIdleConns: 2 * workers, MaxIdleConnsPerHost: workers,
		IdleConnTimeout: 90 * time.Second, DialContext: (&net.Dialer{Timeout: connectTimeout}).DialContext, TLSHandshakeTimeout: connectTimeout,
		ForceAttemptHTTP2: true, WriteBufferSize: promptBytes,
	}
	return connecting{t}
}

// connectTimeout is the time limit of each part of connecting to a provider.
const connectTimeout = 10 * time.Second

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

type notConnectedError struct{ error }

func (e notConnectedError) Unwrap() []error { return []error{e.error, provider.ErrNotConnected} }
