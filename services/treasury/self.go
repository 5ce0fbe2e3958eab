package treasury

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
)

// topupSelf is the value of ANIMA_TREASURY_TOPUP_URL for credits that treasury sells
// itself. Its requests to itself use no network: their address exists nowhere else, so no
// agent reaches it.
const (
	topupSelf = "self"
	selfURL   = "https://treasury.invalid"
)

// validTopupURL reports whether s is a value of ANIMA_TREASURY_TOPUP_URL.
func validTopupURL(s string) bool {
	if s == "" || s == topupSelf {
		return true
	}
	u, err := url.Parse(s)
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
}

// inProcess is an [http.RoundTripper] that has a handler of this process answer.
type inProcess struct{ handler http.Handler }

// RoundTrip implements [http.RoundTripper].
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	in := r.Clone(r.Context())
	in.RequestURI = r.URL.RequestURI()
	if in.Host == "" {
		in.Host = r.URL.Host
	}
	a := &answer{header: http.Header{}}
	t.handler.ServeHTTP(a, in)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if a.status == 0 {
		return nil, errors.New("the route has not answered")
	}
	return &http.Response{
		Status: http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.header,
		Body: io.NopCloser(&a.body), ContentLength: int64(a.body.Len()), Request: r,
	}, nil
}

// answer keeps what a handler writes.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements [http.ResponseWriter].
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(b)
}
