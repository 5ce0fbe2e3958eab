package treasury_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/executor/executortest"

	"github.com/anima-run/anima/services/treasury"
	"github.com/anima-run/anima/services/treasury/internal/conway/conwaytest"
)

// renter is a treasury with a Conway account, whose agents call tools.
type renter struct {
	*apptest.World
	t      *testing.T
	conway *conwaytest.Server
}

func newRenter(t *testing.T, account int64) *renter {
	t.Helper()
	s := conwaytest.Start(t, account)
	env := map[string]string{"ANIMA_TREASURY_CONWAY_URL": s.URL, "ANIMA_TREASURY_CONWAY_KEY": conwaytest.Key}
	for k, v := range development {
		env[k] = v
	}
	r := &renter{apptest.Start(t, apptest.Options{Env: env}, treasury.Service, executortest.Policy()), t, s}
	fund(t, r.Bus, 100*api.Dollar)
	return r
}

func (r *renter) call(agent, turn, tool, args string) (string, error) {
	r.t.Helper()
	m := executortest.Allowed(r.t, api.Invocation{Agent: agent, Turn: turn, Tool: tool, Args: json.RawMessage(args)})
	got, err := bus.Call[api.Returned](r.t.Context(), r.Bus, api.CallTreasuryTool{Invocation: m})
	return got.Text, err
}

func (r *renter) says(turn, tool, args, want string) string {
	r.t.Helper()
	got, err := r.call("lucky", turn, tool, args)
	if err != nil || !strings.Contains(got, want) {
		r.t.Errorf("%s: got %q, %v; want %q in it", tool, got, err, want)
	}
	return got
}

func (r *renter) refuses(agent, turn, tool, args string, code api.Code, words string) {
	r.t.Helper()
	got, err := r.call(agent, turn, tool, args)
	if api.CodeOf(err) != code || !strings.Contains(api.Wire(err).Message, words) {
		r.t.Errorf("%s: got %q, %v; want %s with %q", tool, got, err, code, words)
	}
}

func (r *renter) has(available, held api.Micros) {
	r.t.Helper()
	if b := ask[api.Balance](r.t, r.Bus, api.GetBalance{Agent: "lucky"}); b.Available != available || b.Held != held {
		r.t.Errorf("lucky has %s and %s held, want %s and %s", b.Available, b.Held, available, held)
	}
}

// TestPricesAreKept checks that the requests of clients for prices do not become as many
// requests to Conway.
func TestPricesAreKept(t *testing.T) {
	t.Parallel()
	r := newRenter(t, 100_000)
	client := shop{r.HTTP, r.Token}
	for range 3 {
		if got := client.do(t, "GET", "/v1/credits/pricing", "", ""); got.status != 200 || !strings.Contains(got.body, `"monthly_cents"`) {
			t.Errorf("got %d %s", got.status, got.body)
		}
	}
	asked := 0
	for _, q := range r.conway.Requests("GET") {
		if strings.HasSuffix(q.Path, "/pricing") {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("Conway was asked %d times, want once", asked)
	}
}

// TestSandboxTools rents, uses and returns a sandbox, and pays its price once.
func TestSandboxTools(t *testing.T) {
	t.Parallel()
	r := newRenter(t, 100_000)
	ask[api.Account](t, r.Bus, api.OpenAccount{Agent: "bob"})
	r.says("k0", "list_sandboxes", `{}`, "no sandboxes")
	first := r.says("k1", "create_sandbox", `{"name":"My lab!","memory_mb":600}`, "rented the sandbox sb_1 (My-lab-")
	if again := r.says("k1", "create_sandbox", `{"name":"My lab!","memory_mb":600}`, "sb_1"); again != first {
		t.Errorf("the call again: got %q, want %q", again, first)
	}
	r.has(92*api.Dollar, 0) // the cheapest size with 600 MB
	r.refuses("lucky", "k1", "create_sandbox", `{"name":"other"}`, api.Conflict, "another order")
	r.says("k2", "list_sandboxes", `{}`, "running, 1 vCPU, 1024 MB")
	r.says("k3", "expose_port", `{"port":8080}`, "https://sb_1-8080.example")
	r.says("k4", "remove_port", `{"port":8080,"sandbox_id":"sb_1"}`, "not reachable")
	for _, tool := range []string{"expose_port", "remove_port"} {
		r.refuses("bob", "k5", tool, `{"port":1,"sandbox_id":"sb_1"}`, api.Invalid, "you have no sandbox")
	}
	r.refuses("bob", "k6", "delete_sandbox", `{"sandbox_id":"sb_1"}`, api.Invalid, "you have no sandbox")
	r.refuses("bob", "k7", "create_sandbox", `{}`, api.Invalid, "needs $5.00")
	r.refuses("lucky", "k8", "create_sandbox", `{"vcpu":64}`, api.Invalid, "no size")
	for range 2 { // the call is repeated if its answer is lost
		r.says("k9", "delete_sandbox", `{"sandbox_id":"sb_1"}`, "gave the sandbox sb_1 back")
	}
	r.refuses("bob", "k9", "delete_sandbox", `{"sandbox_id":"sb_1"}`, api.Invalid, "you have no sandbox")
	r.refuses("lucky", "k9", "expose_port", `{"port":1,"sandbox_id":"sb_1"}`, api.Invalid, "you have no sandbox")
	r.says("k10", "list_sandboxes", `{}`, "no sandboxes")
	r.has(92*api.Dollar, 0)
	if cents, boxes, _ := r.conway.Balance(); cents != 99_200 || boxes != 0 {
		t.Errorf("at Conway: %d cents and %d sandboxes, want 99200 and none", cents, boxes)
	}
	if got := ask[api.LedgerReport](t, r.Bus, api.VerifyLedger{}); !got.OK {
		t.Errorf("verify: %+v", got)
	}
}

// TestDomainTools registers a domain and manages its records.
func TestDomainTools(t *testing.T) {
	t.Parallel()
	r := newRenter(t, 100_000)
	r.says("k1", "search_domains", `{"query":"lab.com"}`, "lab.com: available, $12.00 a year\nmylab.com: available, $9.00")
	r.says("k2", "search_domains", `{"query":"taken.com"}`, "taken.com: taken")
	r.refuses("lucky", "k3", "register_domain", `{"domain":"taken.com"}`, api.Invalid, "taken")
	r.refuses("lucky", "k4", "register_domain", `{"domain":"../v1"}`, api.Invalid, "not a domain")
	r.refuses("lucky", "k5", "manage_dns", `{"action":"list","domain":"taken.com"}`, api.Invalid, "you have no domain")
	for range 2 {
		r.says("k6", "register_domain", `{"domain":"Lab.com","years":2}`, "registered lab.com, paid $24.00, until 2027-11-25")
	}
	r.has(76*api.Dollar, 0)
	r.says("k7", "manage_dns", `{"action":"list","domain":"lab.com"}`, "no records")
	r.refuses("lucky", "k8", "manage_dns", `{"action":"add","domain":"lab.com","type":"A"}`, api.Invalid, "host")
	r.says("k9", "manage_dns", `{"action":"add","domain":"lab.com","type":"a","host":"www","value":"192.0.2.1"}`, "added the record rec_1")
	r.says("k10", "manage_dns", `{"action":"list","domain":"lab.com"}`, "rec_1: A www 192.0.2.1, ttl 3600")
	r.says("k11", "manage_dns", `{"action":"delete","domain":"lab.com","record_id":"rec_1"}`, "deleted")
	r.refuses("lucky", "k12", "manage_dns", `{"action":"delete","domain":"lab.com"}`, api.Invalid, "record_id")
	if _, _, domains := r.conway.Balance(); domains != 1 {
		t.Errorf("%d domains are registered, want 1", domains)
	}
}

// TestOrderRefused checks that a refused order costs nothing and is not sent again.
func TestOrderRefused(t *testing.T) {
	t.Parallel()
	r := newRenter(t, 100)
	for range 2 {
		r.refuses("lucky", "k1", "create_sandbox", `{}`, api.Invalid, "operator's account at Conway")
	}
	r.has(100*api.Dollar, 0)
	if posts := r.conway.Requests("POST"); len(posts) != 1 {
		t.Errorf("got %d orders at Conway, want 1", len(posts))
	}
}

// TestConcurrentOrders checks that copies of one call rent one sandbox.
func TestConcurrentOrders(t *testing.T) {
	t.Parallel()
	r := newRenter(t, 100_000)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { r.says("k1", "create_sandbox", `{}`, "sb_1") })
	}
	wg.Wait()
	r.has(95*api.Dollar, 0)
	if cents, boxes, _ := r.conway.Balance(); cents != 99_500 || boxes != 1 {
		t.Errorf("at Conway: %d cents and %d sandboxes, want 99500 and 1", cents, boxes)
	}
}

// TestWithoutProvider checks that tools without a provider are not offered, and that a
// call says why.
func TestWithoutProvider(t *testing.T) {
	t.Parallel()
	b := apptest.Start(t, apptest.Options{Env: development}, treasury.Service, executortest.Policy()).Bus
	fund(t, b, api.Dollar)
	if diff := cmp.Diff([]string{"check_credits", "fund_child", "transfer_credits"}, ask[api.ToolList](t, b, api.ListTreasuryTools{}).Tools); diff != "" {
		t.Errorf("tools (-want +got):\n%s", diff)
	}
	for tool, args := range map[string]string{
		"create_sandbox": `{}`, "list_sandboxes": `{}`, "delete_sandbox": `{"sandbox_id":"x"}`, "expose_port": `{"port":1}`, "remove_port": `{"port":1}`,
		"search_domains": `{"query":"x"}`, "register_domain": `{"domain":"x.com"}`, "manage_dns": `{"action":"list","domain":"x.com"}`,
	} {
		_, err := bus.Call[api.Returned](t.Context(), b, api.CallTreasuryTool{Invocation: allowed(t, tool, args)})
		if api.CodeOf(err) != api.Denied || !strings.Contains(fmt.Sprint(err), "none is configured") || !strings.Contains(fmt.Sprint(err), "ANIMA_TREASURY_CONWAY_URL") {
			t.Errorf("%s: got %v", tool, err)
		}
	}
}
