// Package conwaytest is a server with the HTTP API of Conway for tests: sandboxes, ports,
// domains and DNS records in memory, paid from an account. It answers a repeated
// idempotency key with its first answer. It must not be used outside tests.
package conwaytest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// Key is the API key that the server accepts.
const Key = "cnwy_k_test"

// Fault is what the server does instead of answering a request.
type Fault struct {
	Status     int    // of the answer
	RetryAfter string // header
	Lost       bool   // execute the request, and close the connection without an answer
}

// Request is a request that arrived.
type Request struct{ Method, Path, Key, Body string }

// Server is the server.
type Server struct {
	URL string

	mu        sync.Mutex
	balance   int64 // cents
	sandboxes map[string]map[string]any
	ports     map[string]bool
	domains   map[string]bool
	records   map[string]map[string]any
	answers   map[string][]byte // by idempotency key
	faults    []Fault
	requests  []Request
	next      int
}

// Start starts a server whose account has an amount of cents. It stops with the test.
func Start(t testing.TB, balance int64) *Server {
	t.Helper()
	s := &Server{
		balance: balance, sandboxes: map[string]map[string]any{}, ports: map[string]bool{}, domains: map[string]bool{"taken.com": true},
		records: map[string]map[string]any{}, answers: map[string][]byte{},
	}
	srv := httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(srv.Close)
	s.URL = srv.URL
	return s
}

// Fail makes the next requests fail, one fault each.
func (s *Server) Fail(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, faults...)
}

// Requests returns the requests that arrived with a method ("": all).
func (s *Server) Requests(method string) (all []Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.requests {
		if method == "" || r.Method == method {
			all = append(all, r)
		}
	}
	return all
}

// Balance returns the cents of the account, and the numbers of sandboxes and domains.
func (s *Server) Balance() (cents int64, sandboxes, domains int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.balance, len(s.sandboxes), len(s.domains) - 1
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var body map[string]any
	_ = json.NewDecoder(r.Body).Decode(&body) // a request without a body has none
	text, _ := json.Marshal(body)
	key := r.Header.Get("Idempotency-Key")
	s.requests = append(s.requests, Request{r.Method, r.URL.Path, key, string(text)})
	var fault Fault
	if len(s.faults) > 0 {
		fault, s.faults = s.faults[0], s.faults[1:]
	}
	if fault.RetryAfter != "" {
		w.Header().Set("Retry-After", fault.RetryAfter)
	}
	switch {
	case fault.Status != 0:
		answer(w, fault.Status, map[string]any{"error": "made to fail"})
		return
	case r.Header.Get("Authorization") != Key:
		answer(w, http.StatusUnauthorized, map[string]any{"error": "Missing or invalid authentication. Provide Authorization or X-API-Key header."})
		return
	}
	if r.Method != http.MethodGet && key == "" {
		answer(w, http.StatusBadRequest, map[string]any{"error": "a change without an idempotency key"})
		return
	}
	out, repeated := s.answers[key]
	status := http.StatusOK
	if key == "" || !repeated {
		var v any
		status, v = s.handle(r, body)
		out, _ = json.Marshal(v)
		if key != "" && status == http.StatusOK {
			s.answers[key] = out
		}
	}
	if fault.Lost {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(out)
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

var tiers = []map[string]any{
	{"name": "small", "vcpu": 1, "memory_mb": 512, "disk_gb": 5, "monthly_cents": 500},
	{"name": "medium", "vcpu": 1, "memory_mb": 1024, "disk_gb": 10, "monthly_cents": 800},
	{"name": "large", "vcpu": 4, "memory_mb": 8192, "disk_gb": 80, "monthly_cents": 4000},
}

func (s *Server) handle(r *http.Request, body map[string]any) (int, any) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch route := r.Method + " " + strings.Join(parts[1:min(3, len(parts))], "/"); {
	case route == "GET credits/balance":
		return 200, map[string]any{"balance_cents": s.balance}
	case route == "GET credits/pricing":
		return 200, map[string]any{"tiers": tiers}
	case route == "POST sandboxes":
		return s.create(body)
	case route == "GET sandboxes":
		all := []any{}
		for _, v := range s.sandboxes {
			all = append(all, v)
		}
		return 200, map[string]any{"sandboxes": all}
	case parts[1] == "sandboxes" && s.sandboxes[parts[2]] == nil:
		return 404, map[string]any{"error": "no such sandbox"}
	case r.Method == http.MethodDelete && parts[1] == "sandboxes" && len(parts) == 3:
		delete(s.sandboxes, parts[2])
		return 200, map[string]any{}
	case r.Method == http.MethodPost && parts[1] == "sandboxes":
		port := fmt.Sprint(body["port"])
		s.ports[parts[2]+":"+port] = true
		return 200, map[string]any{"port": body["port"], "publicUrl": "https://" + parts[2] + "-" + port + ".example"}
	case r.Method == http.MethodDelete && parts[1] == "sandboxes":
		delete(s.ports, parts[2]+":"+parts[4])
		return 200, map[string]any{}
	case route == "GET domains/search":
		name := r.URL.Query().Get("query")
		return 200, map[string]any{"results": []any{
			map[string]any{"domain": name, "available": !s.domains[name], "registration_price": 1200, "renewal_price": 1500, "currency": "USD"},
			map[string]any{"domain": "my" + name, "purchasable": true, "purchase_price": 900},
		}}
	case route == "POST domains/register":
		return s.register(body)
	}
	return s.dns(r, parts, body)
}

func (s *Server) pay(cents int64) (int, any) {
	if s.balance < cents {
		return 402, map[string]any{"error": "INSUFFICIENT_CREDITS", "details": map[string]any{"required_cents": cents, "current_balance_cents": s.balance}}
	}
	s.balance -= cents
	return 0, nil
}

func (s *Server) create(body map[string]any) (int, any) {
	for _, tier := range tiers {
		if body["memory_mb"].(float64) <= float64(tier["memory_mb"].(int)) {
			if status, v := s.pay(int64(tier["monthly_cents"].(int))); status != 0 {
				return status, v
			}
			s.next++
			id := fmt.Sprintf("sb_%d", s.next)
			s.sandboxes[id] = map[string]any{"sandbox_id": id, "name": body["name"], "status": "running", "vcpu": 1, "memory_mb": tier["memory_mb"], "disk_gb": tier["disk_gb"]}
			return 200, s.sandboxes[id]
		}
	}
	return 400, map[string]any{"error": "no such size"}
}

func (s *Server) register(body map[string]any) (int, any) {
	name := fmt.Sprint(body["domain"])
	if s.domains[name] {
		return 409, map[string]any{"error": "domain is taken"}
	}
	if status, v := s.pay(1200 * int64(body["years"].(float64))); status != 0 {
		return status, v
	}
	s.domains[name] = true
	return 200, map[string]any{"domain": name, "status": "registered", "expiry": "2027-11-25", "id": "tx_1"}
}

func (s *Server) dns(r *http.Request, parts []string, body map[string]any) (int, any) {
	if len(parts) < 4 || parts[1] != "domains" || !s.domains[parts[2]] {
		return 404, map[string]any{"error": "not found"}
	}
	switch r.Method {
	case http.MethodGet:
		all := []any{}
		for _, v := range s.records {
			all = append(all, v)
		}
		return 200, all
	case http.MethodPost:
		s.next++
		id := fmt.Sprintf("rec_%d", s.next)
		s.records[id] = map[string]any{"record_id": id, "type": body["type"], "name": body["host"], "answer": body["value"], "ttl": body["ttl"]}
		return 200, s.records[id]
	}
	if s.records[parts[4]] == nil {
		return 404, map[string]any{"error": "no such record"}
	}
	delete(s.records, parts[4])
	return 200, map[string]any{}
}
