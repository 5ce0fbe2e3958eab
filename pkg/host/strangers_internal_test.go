package host

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/semaphore"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
)

// TestStrangersShareMemory checks that the bodies of Public routes, and the answers that
// their handlers count, are bounded together while the handlers run.
func TestStrangersShareMemory(t *testing.T) {
	t.Parallel()
	const large, most = 3 * firstPart, 4 * firstPart
	e := newEdge(Config{HTTPAddr: "127.0.0.1:0"}, newStatus(nil))
	e.strangers = semaphore.NewWeighted(most)
	arrived, release := make(chan struct{}), make(chan struct{})
	routes := serviceRoutes{edge: e, tracers: noop.NewTracerProvider()}
	routes.Public("POST /body", func(w http.ResponseWriter, r *http.Request) {
		if _, err := ReadBody(w, r, 2*most); err != nil {
			WriteError(w, 0, err)
			return
		}
		if r.URL.RawQuery == "wait" {
			arrived <- struct{}{}
			<-release
		}
	})
	routes.Public("GET /answer", func(w http.ResponseWriter, r *http.Request) { WriteJSON(w, "", Occupy(r.Context(), large)) })
	server := httptest.NewServer(e)
	t.Cleanup(server.Close)
	send := func(method, path string, body io.Reader) (int, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, body)
		if err != nil {
			return 0, err
		}
		res, err := server.Client().Do(req)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	text := func(n int) io.Reader { return strings.NewReader(strings.Repeat("x", n)) }
	check := func(what, method, path string, body io.Reader, want int) {
		t.Helper()
		if got, err := send(method, path, body); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", what, got, err, want)
		}
	}
	check("more than all", "POST", "/body", text(most+1), http.StatusTooManyRequests)
	done := make(chan error, 1)
	go func() {
		_, err := send("POST", "/body?wait", text(large))
		done <- err
	}()
	select {
	case <-arrived:
	case err := <-done:
		t.Fatal("the first request ended early", err)
	}
	check("a second large body", "POST", "/body", text(large), http.StatusTooManyRequests)
	check("a second large body of unknown length", "POST", "/body", io.MultiReader(text(large)), http.StatusTooManyRequests)
	check("a large answer", "GET", "/answer", nil, http.StatusTooManyRequests)
	check("a small body", "POST", "/body", text(firstPart-1), http.StatusOK)
	close(release)
	if err := <-done; err != nil {
		t.Error(err)
	}
	check("afterwards", "POST", "/body", text(large), http.StatusOK)
	check("an answer afterwards", "GET", "/answer", nil, http.StatusOK)
}

// TestStrangersLeaveSpace checks that public routes refuse what needs space on a disk that
// has space for the operator only.
func TestStrangersLeaveSpace(t *testing.T) {
	t.Parallel()
	e := newEdge(Config{HTTPAddr: "127.0.0.1:0", Token: config.Secret("token")}, newStatus(nil))
	e.spare = func() error { return &api.Error{Code: api.Unavailable, Reason: api.ReasonNoSpace, Message: "full"} }
	routes := serviceRoutes{edge: e, tracers: noop.NewTracerProvider()}
	done := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	routes.Public("/public", done)
	routes.Handle("/own", done)
	for request, want := range map[string]int{
		"POST /public": http.StatusInsufficientStorage, "PUT /public": http.StatusInsufficientStorage, "GET /public": http.StatusNoContent, "POST /own": http.StatusNoContent,
	} {
		method, path, _ := strings.Cut(request, " ")
		r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost"+path, nil)
		r.Header.Set("Authorization", "token")
		w := httptest.NewRecorder()
		if e.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s: got %d, want %d", request, w.Code, want)
		}
	}
}

// announcing is a body that checks how much memory its reader has reserved.
type announcing struct {
	io.Reader

	t    *testing.T
	most int
}

func (a *announcing) Read(p []byte) (int, error) {
	if len(p) > a.most {
		a.t.Errorf("a buffer of %d bytes before the first byte has arrived, want at most %d", len(p), a.most)
	}
	a.most = 1 << 30
	return a.Reader.Read(p)
}

func (a *announcing) Close() error { return nil }

// TestAnnouncedBody checks that a client that only announces a large body occupies no
// memory, and that bodies of all sizes arrive unchanged.
func TestAnnouncedBody(t *testing.T) {
	t.Parallel()
	const limit = 8 << 20
	for _, size := range []int{0, 1, firstPart - 1, firstPart, firstPart + 1, 5 * firstPart, limit} {
		for _, announced := range []int64{int64(size), -1} {
			want := strings.Repeat("x", size)
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil)
			r.Body, r.ContentLength = &announcing{strings.NewReader(want), t, 2 * firstPart}, announced
			got, err := ReadBody(httptest.NewRecorder(), r, limit)
			if err != nil || string(got) != want {
				t.Errorf("%d bytes, announced as %d: got %d, %v", size, announced, len(got), err)
			}
			if announced > 0 && cap(got) > size+size/4+2*firstPart {
				t.Errorf("%d bytes are in a buffer of %d", size, cap(got))
			}
		}
	}
}
