package loop

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// owners are the other services that execute tools. loop periodically requests from
// each the list of its tools; the last answer of an unavailable service is kept.
type owners struct {
	bus      *bus.Bus
	log      *slog.Logger
	requests map[api.Owner]ownerRequests

	mu  sync.Mutex
	has map[api.Owner][]string
}

// askEvery is the interval of the requests to the owners, and askTimeout the timeout of
// one.
const (
	askEvery   = 30 * time.Second
	askTimeout = 5 * time.Second
)

// ownerRequests are the requests to one owner.
type ownerRequests struct {
	list  api.Message
	call  func(api.Invocation) api.Message
	tools []string // that the owner executes in this release
}

func requestsOf() map[api.Owner]ownerRequests {
	return map[api.Owner]ownerRequests{
		api.Treasury: {api.ListTreasuryTools{}, func(m api.Invocation) api.Message { return api.CallTreasuryTool{Invocation: m} }, []string{"check_credits"}},
		api.Heartbeat: {api.ListHeartbeatTools{}, func(m api.Invocation) api.Message { return api.CallHeartbeatTool{Invocation: m} }, []string{
			"heartbeat_ping", "modify_heartbeat",
		}},
		api.Inference: {api.ListInferenceTools{}, func(m api.Invocation) api.Message { return api.CallInferenceTool{Invocation: m} }, []string{
			"list_models", "check_inference_spending", "switch_model", "enter_low_compute",
		}},
		api.Social: {api.ListSocialTools{}, func(m api.Invocation) api.Message { return api.CallSocialTool{Invocation: m} }, []string{"send_message"}},
	}
}

// newOwners returns owners that execute the tools of this release until their first
// answer, so that a run does not lack a tool because loop was started first.
func newOwners(b *bus.Bus, log *slog.Logger) *owners {
	o := &owners{bus: b, log: log, requests: requestsOf(), has: map[api.Owner][]string{}}
	for owner, r := range o.requests {
		o.has[owner] = r.tools
	}
	return o
}

// tools returns the tools of the catalogue that owners may execute.
func (o *owners) tools() []engine.Tool {
	var out []engine.Tool
	for _, spec := range catalog.Tools() {
		r, ok := o.requests[spec.Owner]
		if !ok {
			continue
		}
		t := engine.Builtin(spec.Name, nil, func(ctx context.Context, c engine.Call, _ catalog.Args) (engine.Output, error) {
			return o.call(ctx, r, spec.Name, c)
		})
		t.Offered = func(engine.Agent) bool { return o.executes(spec) }
		out = append(out, t)
	}
	return out
}

func (o *owners) executes(spec catalog.Tool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Contains(o.has[spec.Owner], spec.Name)
}

// call calls the owner of a tool. It does not check whether the owner executes the
// tool: if not, the owner returns an error.
func (o *owners) call(ctx context.Context, r ownerRequests, name string, c engine.Call) (engine.Output, error) {
	m := api.Invocation{
		Agent: c.Agent.ID, Session: c.Session, Turn: c.Turn, Index: c.Index, Tool: name, Args: c.Args, Key: c.Key, Token: c.Token, At: c.At,
	}
	if end, ok := ctx.Deadline(); ok {
		m.Deadline = end.UnixMicro()
	}
	answer, err := bus.Call[api.Returned](ctx, o.bus, r.call(m))
	if api.ReasonOf(err) == api.ReasonNoAnswer { // also from an owner of a release without the tool
		e := api.Wire(err)
		e.Message = fmt.Sprintf("%s does not execute %s now: %s", r.list.Subject().Owner, name, e.Message)
		err = e
	}
	return engine.Output{Text: answer.Text}, err
}

// run requests the tools of all owners every askEvery until ctx ends.
func (o *owners) run(ctx context.Context) error {
	o.ask(ctx)
	wait.Every(ctx, askEvery, func() { o.ask(ctx) })
	return nil
}

func (o *owners) ask(ctx context.Context) {
	var all sync.WaitGroup
	for owner, r := range o.requests {
		all.Go(func() { o.askOne(ctx, owner, r.list) })
	}
	all.Wait()
}

func (o *owners) askOne(ctx context.Context, owner api.Owner, question api.Message) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	list, err := bus.Call[api.ToolList](ctx, o.bus, question)
	if err != nil {
		o.log.DebugContext(ctx, "list of tools not read, keeping the last one", "owner", string(owner), "err", err)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.has[owner] = list.Tools
}
