package router

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// The base URLs of OpenAI and Anthropic.
const (
	openAIURL    = "https://api.openai.com/v1"
	anthropicURL = "https://api.anthropic.com"
)

// ollama is the name of the provider at OLLAMA_HOST.
const ollama = "ollama"

// errOllamaHost reports a malformed OLLAMA_HOST. It does not quote the value, which may
// hold a password.
var errOllamaHost = errors.New("OLLAMA_HOST must look like 127.0.0.1:11434 or http://host:11434")

// ollamaURL returns the base URL for the setting OLLAMA_HOST, which is a host, host:port
// or URL. Ollama's server uses the same setting as its listen address.
func ollamaURL(host string) (string, error) {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(host), "://")
	port := "11434"
	switch {
	case !ok:
		scheme, rest = "http", scheme
	case scheme == "http":
		port = "80"
	case scheme == "https":
		port = "443"
	default:
		return "", errOllamaHost
	}
	rest, path, _ := strings.Cut(rest, "/")
	name, given, err := net.SplitHostPort(rest)
	if err != nil {
		name, given = strings.Trim(rest, "[]"), port
	}
	if given == "" {
		given = port
	}
	if ip, err := netip.ParseAddr(name); name == "" || err == nil && ip.IsUnspecified() {
		name = "127.0.0.1" // a server that listens on all addresses is reachable here
	}
	u := url.URL{Scheme: scheme, Host: net.JoinHostPort(name, given), Path: strings.TrimSuffix("/"+path, "/") + "/v1"}
	if parsed, err := url.Parse(u.String()); err != nil || parsed.Hostname() == "" {
		return "", errOllamaHost
	}
	return u.String(), nil
}

// isLocal reports whether a URL is on this machine or in a private network. It examines
// the text only and makes no DNS query: a loopback, private or link-local address, a name
// without dots, or a name under .local, .localhost, .internal or .svc.
func isLocal(base string) bool {
	u, err := url.Parse(base)
	if err != nil {
		return false
	}
	name := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if ip, err := netip.ParseAddr(name); err == nil {
		ip = ip.Unmap()
		return ip.IsLoopback() || ip.IsPrivate() || ip.IsLinkLocalUnicast()
	}
	for _, end := range []string{".local", ".localhost", ".internal", ".svc"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return name != "" && !strings.Contains(name, ".")
}

// redactURL returns a URL without user, password, query and fragment, for messages.
func redactURL(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return "the provider's URL"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}
