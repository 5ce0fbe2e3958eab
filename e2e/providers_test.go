package e2e

import (
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

var update = flag.Bool("update", false, "write the table of docs/providers.md")

const (
	providersDoc = "../docs/providers.md"
	tableBegins  = "<!-- scenarios: written by go test ./e2e -run TestProvidersDoc -update -->\n"
)

// TestProviders checks for each behaviour of a provider that a message to an agent ends
// as expected, has the expected cost and makes at most the expected number of upstream
// calls, and that the next message works. The provider refuses every request that the
// protocol does not allow.
func TestProviders(t *testing.T) {
	t.Parallel()
	group := func(name string, env map[string]string, all []episode) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parts := map[string]part{}
			for _, s := range all {
				parts[modelOf(s)] = s.part
			}
			server := newStrictServer(parts)
			web := httptest.NewServer(server)
			t.Cleanup(web.Close)
			more := map[string]string{"ANIMA_INFERENCE_ROUTER_SIMULATED": "false", "OPENAI_BASE_URL": web.URL + "/v1"}
			for k, v := range env {
				more[k] = v
			}
			w := oneProcess(t, more)
			tests := map[string]func(*testing.T){}
			for _, s := range all {
				tests[s.name] = func(t *testing.T) { s.play(t, w, server) }
			}
			together(t, tests)
		})
	}
	group("well timed", map[string]string{"ANIMA_INFERENCE_ROUTER_BREAKER": "1s"}, episodes())
	group("slow", map[string]string{"ANIMA_INFERENCE_ROUTER_FIRST_TOKEN_TIMEOUT": "5s", "ANIMA_INFERENCE_ROUTER_TOKEN_TIMEOUT": "5s"}, slowEpisodes())
	for _, s := range lackingEpisodes() {
		group(s.name, nil, []episode{s})
	}
}

// modelOf returns the id of an episode's model.
func modelOf(s episode) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || r == ',' {
			return '-'
		}
		return r
	}, strings.ToLower("part "+s.name))
}

func (s episode) play(t *testing.T, w *world, server *strictServer) {
	id := modelOf(s)
	a := call[api.Agent](t, w, api.ApplyAgent{Source: "---\nname: " + strings.ReplaceAll(id, "_", "-") + "\nmodel: " + id + "\ntools: [read_file, write_file]\n---\nBe useful.\n"})
	call[api.Posted](t, w, api.Deposit{ID: "birth-" + a.ID, Agent: a.ID, Amount: 10 * api.Dollar, Source: "faucet"})
	end := send(t, w, a.ID, "hello")
	s.judge(t, w, end, s.end)
	paid := int64(10*api.Dollar - call[api.Balance](t, w, api.GetBalance{Agent: a.ID}).Available)
	switch {
	case s.cost == estimated && (paid <= 0 || paid > int64(api.Dollar)):
		t.Errorf("cost: got %d micro-USD, want an estimate", paid)
	case s.cost != estimated && paid != s.cost:
		t.Errorf("cost: got %d micro-USD, want %d", paid, s.cost)
	}
	if got := server.callsOf(id); got != s.calls {
		t.Errorf("upstream calls: got %d, want %d", got, s.calls)
	}
	want := s.after
	if want == "" {
		want = "answer: fine"
	}
	s.judge(t, w, send(t, w, a.ID, "and now?"), want)
	if _, err := os.Stat(filepath.Join(w.data, "loop", "workspaces", a.ID, "half.txt")); err == nil {
		t.Error("a call that was cut has been executed")
	}
	for _, why := range server.refusals(id) {
		t.Errorf("a request broke the protocol: %s", why)
	}
	if got := call[api.Balance](t, w, api.GetBalance{Agent: a.ID}).Held; got != 0 {
		t.Errorf("%s is still held", got)
	}
}

// judge compares the end of a run with "answer: text" or "code reason: text".
func (s episode) judge(t *testing.T, w *world, end api.LoopEnd, want string) {
	t.Helper()
	head, text, _ := strings.Cut(want, ": ")
	got := strings.TrimSpace(fmt.Sprintf("%s %s: %s (next: %s)", end.Code, end.Reason, end.Error, end.Next))
	switch {
	case head != "answer":
		if end.Success || fmt.Sprintf("%s %s", end.Code, end.Reason) != head || !strings.Contains(end.Error, text) || end.Next == "" {
			t.Errorf("end: got %s, success %v; want %s, and what to do", got, end.Success, want)
		}
	case !end.Success:
		t.Errorf("end: got %s; want %s", got, want)
	case text == "1 MB":
		if len(end.Response) != 256*4096 || !strings.HasSuffix(end.Response, lines(255, 4096)) {
			t.Errorf("got %d bytes, want 1 MB", len(end.Response))
		}
	case text == "20,000 deltas":
		if !strings.HasPrefix(end.Response, "0 1 2 ") || !strings.HasSuffix(end.Response, " 19998 19999 ") || strings.Count(end.Response, " ") != 20_000 {
			t.Errorf("got %d bytes: %.40q", len(end.Response), end.Response)
		}
	case end.Response != text:
		t.Errorf("got %q, want %q", end.Response, text)
	}
}

// TestProvidersDoc checks that the table of docs/providers.md is the one of the episodes.
func TestProvidersDoc(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.FromSlash(providersDoc))
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(string(data), tableBegins)
	if !found {
		t.Fatalf("%s has no line %q", providersDoc, tableBegins)
	}
	want := head + tableBegins + table()
	if *update {
		if err := os.WriteFile(filepath.FromSlash(providersDoc), []byte(want), 0o644); err != nil { //nolint:gosec // a document
			t.Fatal(err)
		}
		return
	}
	if string(data) != want {
		t.Errorf("%s is not what the episodes say: go test ./e2e -run TestProvidersDoc -update", providersDoc)
	}
}

func table() string {
	var b strings.Builder
	b.WriteString("| the provider | end of the message | cost in micro-USD | upstream calls |\n| --- | --- | ---: | ---: |\n")
	all := append(append(episodes(), slowEpisodes()...), lackingEpisodes()...)
	for _, s := range all {
		head, text, _ := strings.Cut(s.end, ": ")
		if head != "answer" {
			head = "`" + strings.Join(strings.Fields(head), "` `") + "`"
		}
		if text != "" && head != "answer" {
			head += ": " + text
		}
		cost := fmt.Sprint(s.cost)
		if s.cost == estimated {
			cost = "estimated"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %d |\n", s.does, head, cost, s.calls)
	}
	return b.String()
}
