package safehttp

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"https://example.com/x?a=1&b=2":  "",
		"https://93.184.216.34/":         "",
		"http://example.com/":            "only https",
		"https://user:hunter2@e.com/":    "user",
		"https://e.com/#hunter2":         "fragment",
		"https://127.0.0.1/":             "public internet",
		"https://[::ffff:10.0.0.1]/":     "public internet",
		"https://169.254.169.254/latest": "public internet",
		"file:///etc/passwd":             "not an address",
		"":                               "not an address",
		"https:opaque":                   "not an address",
		"https://hunter2 .example.com/":  "not an address",
		"ftp://example.com/hunter2":      "only https",
	} {
		_, err := Options{}.Parse(raw)
		switch {
		case want == "" && err != nil:
			t.Errorf("Parse(%q): %v", raw, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("Parse(%q): error %v, want one with %q", raw, err, want)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("Parse(%q): the error %q repeats the address", raw, err)
		}
	}
	if _, err := (Options{AllowPrivate: true}).Parse("http://127.0.0.1:80/"); err != nil {
		t.Errorf("allowed: %v", err)
	}
}

func TestPublic(t *testing.T) {
	t.Parallel()
	for ip, want := range map[string]bool{
		"8.8.8.8": true, "2606:4700::1111": true,
		"127.0.0.1": false, "::1": false, "10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false, "169.254.1.1": false,
		"fe80::1": false, "fd00::1": false, "100.64.0.1": false, "0.0.0.0": false, "::": false, "224.0.0.1": false, "255.255.255.255": false,
		"::ffff:127.0.0.1": false, "::127.0.0.1": false, "::ffff:0:127.0.0.1": false, "64:ff9b::7f00:1": false, "2002:7f00:1::": false, "192.0.2.1": false,
	} {
		if got := Public(netip.MustParseAddr(ip)); got != want {
			t.Errorf("Public(%s) = %t, want %t", ip, got, want)
		}
	}
}

func TestClientRefusesLoopback(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	res, err := Options{}.Client().Get(strings.Replace(server.URL, "127.0.0.1", "localhost", 1))
	if err == nil {
		_ = res.Body.Close()
	}
	if !errors.Is(err, ErrPrivate) {
		t.Errorf("error %v, want %v", err, ErrPrivate)
	}
}

func TestClientStaysAtTheHost(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the other host was asked") }))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
		case "/here":
			http.Redirect(w, r, "/there", http.StatusTemporaryRedirect)
		}
	}))
	defer server.Close()
	client := Options{AllowPrivate: true}.Client()
	defer client.CloseIdleConnections()
	res, err := client.Get(server.URL + "/away?key=hunter2")
	if err == nil {
		_ = res.Body.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "another host") {
		t.Errorf("error %v, want one about another host", err)
	} else if strings.Contains(Explain(err).Error(), "hunter2") {
		t.Errorf("%q holds the address", Explain(err))
	}
	res, err = client.Get(server.URL + "/here")
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil || res.Request.URL.Path != "/there" {
		t.Errorf("ended at %s, %v; want /there", res.Request.URL.Path, err)
	}
}

// TestLimit reads answers that are as long as permitted and longer, also compressed ones.
func TestLimit(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := strings.Repeat(" ", most)
		if strings.HasPrefix(r.URL.Path, "/longer") {
			text += " "
		}
		if strings.HasSuffix(r.URL.Path, "/compressed") {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, text)
			_ = z.Close()
			return
		}
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, text)
	}))
	defer server.Close()
	client := &http.Client{Transport: Limit(server.Client().Transport, most)}
	defer client.CloseIdleConnections()
	for path, fits := range map[string]bool{"/all": true, "/all/compressed": true, "/longer": false, "/longer/compressed": false} {
		res, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		_, tooLong := errors.AsType[*http.MaxBytesError](err)
		if n != most || tooLong == fits || err != nil && !tooLong {
			t.Errorf("%s: got %d bytes, %v, want %d, and an error if there are more", path, n, err, most)
		}
	}
}
