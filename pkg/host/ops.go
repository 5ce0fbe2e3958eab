package host

import (
	"net/http"
	"slices"
	"strings"
	"sync"
)

// status is what readiness answers: what each service still waits for.
type status struct {
	mu    sync.Mutex
	waits map[string]string // by service; "" is ready
}

func newStatus(services []Service) *status {
	st := &status{waits: map[string]string{}}
	for _, s := range services {
		st.waits[s.Name] = "starting"
	}
	return st
}

func (s *status) set(service, waits string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits[service] = waits
}

func (s *status) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.waits {
		if w != "" {
			return false
		}
	}
	return true
}

func (s *status) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for name, w := range s.waits {
		if w == "" {
			w = "ready"
		}
		out = append(out, name+": "+w)
	}
	slices.Sort(out)
	return out
}

// ops answers probes and scrapes. Liveness follows nothing but the process;
// readiness follows NATS and the services.
func ops(p Process, st *status) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // the prober is gone
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		lines := st.lines()
		ok := st.ready()
		if !p.Conn.Connected() {
			ok, lines = false, append(lines, "nats: not connected")
		}
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(strings.Join(lines, "\n") + "\n")) // the prober is gone
	})
	mux.Handle("GET /metrics", p.Exporters.Handler())
	return mux
}
