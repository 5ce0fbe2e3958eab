package host

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/anima-run/anima/pkg/disk"
)

// status holds the state that readiness reports: for each service what it is waiting for,
// and which of its writes failed.
type status struct {
	mu      sync.Mutex
	waits   map[string]string // by service; "" means ready
	failing map[string]string // by service and store: the error of the last write
	reserve *disk.Reserve     // of the data folder's disk; nil until the folder is used
	examine map[string]func(context.Context) []Finding
}

func newStatus(services []Service) *status {
	st := &status{waits: map[string]string{}, failing: map[string]string{}, examine: map[string]func(context.Context) []Finding{}}
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

// wrote records the result of a service's write to a store; a nil err means success.
func (s *status) wrote(service, store string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.failing, service+": "+store)
	if err != nil {
		s.failing[service+": "+store] = err.Error()
	}
}

// keep starts the check of the reserve on the data folder's disk.
func (s *status) keep(dir string, mib int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reserve != nil {
		return nil
	}
	if mib > 0 {
		mib *= disk.MiB
	}
	var err error
	s.reserve, err = disk.NewReserve(dir, mib)
	return err
}

// room returns an error if only the reserve of the data folder's disk is free.
func (s *status) room() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserve.Check()
}

// spare returns an error if the data folder's disk has no space for what strangers send.
func (s *status) spare() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserve.CheckStranger()
}

// faults returns the errors of failing writes.
func (s *status) faults() []string {
	var out []string
	if err := s.room(); err != nil {
		out = append(out, "disk: "+err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for where, why := range s.failing {
		out = append(out, where+" cannot be written: "+why)
	}
	slices.Sort(out)
	return out
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

// faults returns the reasons, besides services that are not ready, for which the process
// is not ready.
func (p Process) faults(st *status) []string {
	var out []string
	if !p.Conn.Connected() {
		out = append(out, "nats: not connected")
	}
	out = append(out, st.faults()...)
	if p.Stores != nil {
		if err := p.Stores(); err != nil {
			out = append(out, err.Error())
		}
	}
	return out
}

// opsHosts refuses requests whose Host header is not a configured name. IP addresses are
// allowed, because probes and scrapers use the pod's IP; a page of another site cannot
// have an IP of this machine as its host name.
func opsHosts(c Config, next http.Handler) http.Handler {
	names := namesOf(c.OpsAddr, c.Hosts)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if net.ParseIP(bareHost(r.Host)) == nil && !names.known(r.Host) {
			wrongHost(w, r.Host)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ops returns the handler of probes and scrapes. Liveness depends only on the process;
// readiness depends on NATS, the services and their writes.
func ops(p Process, st *status) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n")) // fails only if the client has disconnected
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		faults := p.faults(st)
		if !st.ready() || len(faults) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(strings.Join(append(st.lines(), faults...), "\n") + "\n")) // fails only if the client has disconnected
	})
	mux.HandleFunc("GET /diagnose", diagnose(p, st))
	mux.Handle("GET /metrics", p.Exporters.MetricsHandler())
	return mux
}
