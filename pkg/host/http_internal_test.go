package host

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestRouteOfStartingService checks that a path is not reported as missing before all
// services have added their routes.
func TestRouteOfStartingService(t *testing.T) {
	t.Parallel()
	st := newStatus([]Service{{Name: "late"}})
	e := newEdge(Config{HTTPAddr: "127.0.0.1:0"}, st)
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/late", nil))
		return w
	}
	if w := get(); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "not ready") {
		t.Errorf("while the service starts: got %d, Retry-After %q, %s", w.Code, w.Header().Get("Retry-After"), w.Body)
	}
	e.Public("GET /late", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	if w := get(); w.Code != http.StatusNoContent {
		t.Errorf("after the route was added: got %d", w.Code)
	}
	st.set("late", "")
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/other", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("a path that no service has: got %d, want 404", w.Code)
	}
}

// TestEmptyName checks that neither an origin without a host, as of a sandboxed page, nor a
// missing name is accepted because the listener's address has no host.
func TestEmptyName(t *testing.T) {
	t.Parallel()
	e := newEdge(Config{HTTPAddr: ":8080", Hosts: []string{"anima.example"}}, newStatus(nil))
	e.Public("GET /open", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for _, c := range []struct {
		host, origin string
		want         int
	}{
		{"anima.example", "", http.StatusNoContent},
		{"anima.example", "https://anima.example", http.StatusNoContent},
		{"anima.example", "null", http.StatusForbidden},
		{"", "", http.StatusForbidden},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/open", nil)
		r.Host = c.host
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("host %q, origin %q: got %d, want %d", c.host, c.origin, w.Code, c.want)
		}
	}
}

// TestTextOfURLs checks that paths and queries which a database may refuse do not reach a
// handler.
func TestTextOfURLs(t *testing.T) {
	t.Parallel()
	e := newEdge(Config{HTTPAddr: "127.0.0.1:0"}, newStatus(nil))
	e.Public("GET /open/{id}", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	for path, want := range map[string]int{
		"/open/k%C5%AF%C5%88?after=%F0%9F%90%8E+1%25&limit=2": http.StatusNoContent,
		"/open/a%00":      http.StatusBadRequest,
		"/open/a%ff":      http.StatusBadRequest,
		"/open/a?q=%00":   http.StatusBadRequest,
		"/open/a?q=1&%ff": http.StatusBadRequest,
		"/open/a?q=1%":    http.StatusBadRequest,
	} {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, nil))
		if w.Code != want {
			t.Errorf("%s: got %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
}
