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
