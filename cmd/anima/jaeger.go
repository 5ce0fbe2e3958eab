package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/anima-run/anima/pkg/config"
)

// defaultJaeger is the URL of the Jaeger UI on this machine.
const defaultJaeger = "http://127.0.0.1:16686"

// jaegerFlag is a flag with an optional value: --jaeger without one means defaultJaeger.
type jaegerFlag string

// Decode reads an optional URL: after =, or as the next word if that contains "://".
func (f *jaegerFlag) Decode(ctx *kong.DecodeContext) error { //nolint:unparam // kong's interface has an error
	*f = defaultJaeger
	next := ctx.Scan.Peek()
	word, isText := next.Value.(string)
	if next.Type == kong.FlagValueToken || isText && !next.IsEOL() && strings.Contains(word, "://") {
		ctx.Scan.Pop()
		*f = jaegerFlag(word)
	}
	return nil
}

// IsBool tells kong that the flag needs no value.
func (*jaegerFlag) IsBool() bool { return true }

// jaegerBase validates the URL of a Jaeger and returns it without a trailing slash.
func jaegerBase(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("ANIMA_JAEGER_URL=%q: want the URL of Jaeger's page, such as %s", s, defaultJaeger)
	}
	return strings.TrimRight(s, "/"), nil
}

// traceURL returns the URL of a trace in the Jaeger UI; it is empty if either part is.
func traceURL(base, trace string) string {
	if base == "" || trace == "" {
		return ""
	}
	return base + "/trace/" + trace
}

// sendToJaeger adds the OTLP endpoint on the host of the Jaeger UI to the settings,
// unless the environment sets an endpoint. It ignores an invalid URL, which the
// validation of the settings reports.
func sendToJaeger(lookup config.Lookup) config.Lookup {
	env := func(name string) string {
		v, _ := lookup(name)
		return v
	}
	base, err := jaegerBase(env("ANIMA_JAEGER_URL"))
	if err != nil || env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" || env("OTEL_EXPORTER_OTLP_ENDPOINT") != "" {
		return lookup
	}
	u, err := url.Parse(base)
	if err != nil {
		return lookup
	}
	port := "4317"
	if cmp.Or(env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), env("OTEL_EXPORTER_OTLP_PROTOCOL")) == "http/protobuf" {
		port = "4318"
	}
	to := "http://" + net.JoinHostPort(u.Hostname(), port)
	return layered(lookup, lookupIn(map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": to}))
}

// listens reports whether the address of a URL accepts TCP connections. It does not check
// the protocol.
func listens(ctx context.Context, at string) bool {
	u, err := url.Parse(at)
	if err != nil {
		return false
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return false
	}
	_ = c.Close() // nothing was written
	return true
}

// jaegerWarnings returns a remark for each address of Jaeger that cannot be reached. That
// is not an error, because Jaeger may start later.
func jaegerWarnings(ctx context.Context, otlp, base string) []string {
	var all []string
	if otlp != "" && !listens(ctx, otlp) {
		all = append(all, fmt.Sprintf("no receiver of traces listens at %s: start Jaeger there (make jaeger); spans that end earlier may be lost", otlp))
	}
	if !listens(ctx, base) {
		all = append(all, fmt.Sprintf("no Jaeger listens at %s, and the links to traces use this address: --jaeger=URL sets another", base))
	}
	return all
}
