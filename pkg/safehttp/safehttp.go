// Package safehttp provides HTTP clients for URLs that an agent, a skill or a model has
// chosen, and not the operator. They reach only the public internet. It also limits the
// answers of servers that the operator has chosen. Package safehttp must not decide whether
// an agent may use the network; its callers check that.
package safehttp

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
	"time"
)

// ErrPrivate reports an address that is not on the public internet.
var ErrPrivate = errors.New("the address is not on the public internet")

// Options are the options of a client. The zero value is correct for URLs from agents.
type Options struct {
	// AllowPrivate allows http, loopback and private addresses, for servers that the
	// operator runs next to the service and for tests.
	AllowPrivate bool
	Roots        *x509.CertPool // nil means the roots of the system
	HeaderWait   time.Duration  // time limit until the response headers; 0 means 30 s
}

// Parse validates a URL for a client with these options: https, a host, no user and no
// fragment. The error does not contain the URL, which may hold a secret.
func (o Options) Parse(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Hostname() == "" || u.Opaque != "":
		return nil, errors.New("it is not an address such as https://example.com/path")
	case u.Scheme != "https" && (u.Scheme != "http" || !o.AllowPrivate):
		return nil, errors.New("only https addresses are reached")
	case u.User != nil:
		return nil, errors.New("the address holds a user; credentials belong in a header")
	case u.Fragment != "":
		return nil, errors.New("the address has a fragment (#); leave it out")
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil && !o.AllowPrivate && !Public(ip) {
		return nil, ErrPrivate
	}
	return u, nil
}

// Client returns a client that connects only to public addresses, checked after name
// resolution, follows redirects only within the same origin, and uses no proxy. It has no
// timeout for a complete request; the caller sets one with the request's context. The
// caller closes the idle connections when the client is no longer used.
func (o Options) Client() *http.Client {
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	if !o.AllowPrivate {
		dialer.Control = Control(Public)
	}
	return &http.Client{
		CheckRedirect: sameOrigin,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSClientConfig: &tls.Config{RootCAs: o.Roots, MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: cmp.Or(o.HeaderWait, 30*time.Second),
			MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 2, IdleConnTimeout: time.Minute,
		},
	}
}

// Control returns a function for [net.Dialer] that refuses other addresses than the
// allowed ones with [ErrPrivate]. The dialer calls it after name resolution, so that a
// second resolution cannot yield another address.
func Control(allowed func(netip.Addr) bool) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		if ap, err := netip.ParseAddrPort(address); err != nil || !allowed(ap.Addr().Unmap()) {
			return ErrPrivate
		}
		return nil
	}
}

func sameOrigin(r *http.Request, via []*http.Request) error {
	switch first := via[0].URL; {
	case len(via) > 5:
		return errors.New("more than 5 redirects")
	case r.URL.Scheme != first.Scheme || r.URL.Host != first.Host:
		return fmt.Errorf("it redirects to another host (%.100s); use the address there", r.URL.Host)
	}
	return nil
}

// special are the special-purpose blocks of IANA's registries that package netip does not
// classify, and the two older blocks of IPv6 that contain all IPv4 addresses.
var special = func() (all []netip.Prefix) {
	for _, p := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"::/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fec0::/10",
	} {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}()

// Public reports whether an address is on the public internet.
func Public(ip netip.Addr) bool {
	ip = ip.Unmap().WithZone("")
	if !ip.IsGlobalUnicast() || ip.IsPrivate() {
		return false
	}
	return !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// Explain returns an error of the client without the URL, which may hold a secret.
func Explain(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}

// Limit returns a RoundTripper for decoders that do not limit what they read. The bodies of
// its answers, after the decompression of base, return [*http.MaxBytesError] after most
// bytes.
func Limit(base http.RoundTripper, most int64) http.RoundTripper { return limited{base, most} }

type limited struct {
	base http.RoundTripper
	most int64
}

func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := l.base.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	res.Body = http.MaxBytesReader(nil, res.Body, l.most)
	return res, nil
}

// CloseIdleConnections is called by http.Client.
func (l limited) CloseIdleConnections() {
	if c, ok := l.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
