package loop

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/skill"
	"github.com/anima-run/anima/services/loop/internal/sqlstore"
	"github.com/anima-run/anima/services/loop/internal/tools/builtin"
	"github.com/anima-run/anima/services/loop/internal/tools/mcp"
)

// toolHandlers serves the requests about tools, skills and MCP servers of agents.
type toolHandlers struct {
	store   *sqlstore.Store
	bus     *bus.Bus
	tools   map[string]engine.Tool // by name, as in the engine
	servers *mcp.Manager
	exec    bool // exec is available: commands are sandboxed, or unsandboxed ones are allowed
}

func (x toolHandlers) routes() []bus.Route {
	return []bus.Route{
		bus.Reply(x.listTools), bus.Reply(x.checkTool), bus.Reply(x.listSkills), bus.Reply(x.getSkill), bus.Reply(x.listServers),
	}
}

// connectWait limits how long a request about servers waits for connections. It is
// shorter than the command line's timeout for an answer.
const connectWait = 8 * time.Second

// whyNot returns the reason why an agent cannot use a tool of the catalogue, "" if it
// can.
func (x toolHandlers) whyNot(spec catalog.Tool, a engine.Agent) string {
	t, there := x.tools[spec.Name]
	switch {
	case !there:
		return "no service executes it in this release"
	case spec.Name == "exec" && !x.exec:
		return "the kernel cannot sandbox commands (no Landlock), and ANIMA_LOOP_ALLOW_UNSANDBOXED is not set"
	case t.Offered == nil || t.Offered(a):
		return ""
	case spec.Owner != api.Loop:
		return string(spec.Owner) + " does not execute it now"
	case !a.Network:
		return "it needs sandbox.network: true in AGENT.md"
	}
	return "a program that it needs is not on the machine of the service loop"
}

// warnings lists the tools of a definition that the agent cannot use.
func (x toolHandlers) warnings(a engine.Agent) []string {
	var all []string
	for _, name := range a.Tools {
		if spec, ok := catalog.Named(name); ok {
			if why := x.whyNot(spec, a); why != "" {
				all = append(all, "tool "+name+" cannot be used: "+why)
			}
		}
	}
	return all
}

func (x toolHandlers) listTools(ctx context.Context, m api.ListTools) (api.Tools, error) {
	out := api.Tools{Tools: []api.ToolInfo{}}
	a := engine.Agent{Network: true} // an agent without restrictions
	if m.Agent != "" {
		var err error
		if a, err = x.store.Definition(ctx, strings.ToLower(m.Agent)); err != nil {
			return out, err
		}
	}
	for _, spec := range catalog.Tools() {
		why := x.whyNot(spec, a)
		out.Tools = append(out.Tools, api.ToolInfo{
			Name: spec.Name, Does: spec.Does, Category: string(spec.Category), Risk: string(spec.Risk), Owner: spec.Owner,
			Executable: why == "", Why: why, Default: slices.Contains(builtin.Basic(), spec.Name), Granted: api.Grants(a.Tools, spec.Name),
		})
	}
	slices.SortFunc(out.Tools, func(p, q api.ToolInfo) int { return strings.Compare(p.Name, q.Name) })
	if m.Agent == "" {
		return out, nil
	}
	offers, err := x.servers.Offers(ctx, a)
	for _, o := range offers {
		out.Tools = append(out.Tools, api.ToolInfo{
			Name: o.Name, Does: o.Does, Category: string(catalog.Conway), Risk: string(catalog.Caution), Owner: api.Loop, Server: o.Server,
			Executable: true, Granted: api.Grants(a.Tools, o.Name),
		})
	}
	return out, err
}

// checkTool requests the decision that policy would make for a call in a turn of the
// agent.
func (x toolHandlers) checkTool(ctx context.Context, m api.CheckTool) (api.Decision, error) {
	kinds := []api.PrincipalKind{api.Creator, api.Self, api.HeartbeatKind, api.Peer, api.External}
	if m.By == "" {
		m.By = api.Creator
	}
	if !slices.Contains(kinds, m.By) {
		return api.Decision{}, &api.Error{Code: api.Invalid, Message: "the principal " + string(m.By) + " does not exist", Next: "use creator, self, heartbeat, peer or external"}
	}
	a, err := x.store.Definition(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return api.Decision{}, err
	}
	return bus.Call[api.Decision](ctx, x.bus, api.CheckCall{Evaluate: api.Evaluate{
		Agent: a.ID, Session: sqlstore.MainSession(a.ID), Run: "check", Turn: "check", Tool: m.Tool, Args: m.Args,
		By: api.Principal{Kind: m.By}, Workspace: a.Workspace, Tools: a.Tools, Network: a.Network,
	}})
}

func (x toolHandlers) listSkills(ctx context.Context, m api.ListSkills) (api.Skills, error) {
	out := api.Skills{Skills: []api.Skill{}}
	a, err := x.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return out, err
	}
	all, err := skill.List(x.store.Workspace(a.ID))
	for _, f := range all {
		v := skillView(f)
		v.Instructions = ""
		out.Skills = append(out.Skills, v)
	}
	return out, err
}

func (x toolHandlers) getSkill(ctx context.Context, m api.GetSkill) (api.Skill, error) {
	a, err := x.store.Agent(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return api.Skill{}, err
	}
	all, err := skill.List(x.store.Workspace(a.ID))
	for _, f := range all {
		if f.Name == m.Skill {
			return skillView(f), err
		}
	}
	if err == nil {
		err = &api.Error{Code: api.NotFound, Message: a.ID + " has no skill " + m.Skill, Next: "anima skill list " + a.ID + " shows the ones there are"}
	}
	return api.Skill{}, err
}

func skillView(f skill.Found) api.Skill {
	v := api.Skill{
		Name: f.Name, Description: f.Description, Status: f.Status(), Usable: f.AutoActivate || len(f.Triggers) > 0,
		Origin: f.Origin, Instructions: f.Instructions,
	}
	if !f.AutoActivate {
		v.Triggers = f.Triggers
	}
	v.Usable = v.Usable && !f.Disabled && len(f.Faults)+len(f.Missing) == 0
	for _, fault := range f.Faults {
		v.Faults = append(v.Faults, fault.String())
	}
	return v
}

func (x toolHandlers) listServers(ctx context.Context, m api.ListServers) (api.Servers, error) {
	a, err := x.store.Definition(ctx, strings.ToLower(m.Agent))
	if err != nil {
		return api.Servers{Servers: []api.MCPServer{}}, err
	}
	if m.Connect {
		wait, cancel := context.WithTimeout(ctx, connectWait)
		defer cancel()
		x.servers.Connect(wait, a)
	}
	all, err := x.servers.Status(a)
	return api.Servers{Servers: all}, err
}

func (x toolHandlers) registerHTTP(r host.Routes) {
	r.Handle("GET /v1/tools", fromURL(func(r *http.Request) api.ListTools { return api.ListTools{Agent: r.URL.Query().Get("agent")} }, x.listTools))
	r.Handle("POST /v1/agents/{id}/check", host.Answer(func(w http.ResponseWriter, r *http.Request) (api.CheckTool, error) {
		var m api.CheckTool
		err := host.ReadJSON(w, r, 512<<10, &m)
		m.Agent = r.PathValue("id")
		return m, err
	}, x.checkTool))
	r.Handle("GET /v1/agents/{id}/skills", fromURL(func(r *http.Request) api.ListSkills { return api.ListSkills{Agent: r.PathValue("id")} }, x.listSkills))
	r.Handle("GET /v1/agents/{id}/skills/{skill}", fromURL(func(r *http.Request) api.GetSkill {
		return api.GetSkill{Agent: r.PathValue("id"), Skill: r.PathValue("skill")}
	}, x.getSkill))
	r.Handle("GET /v1/agents/{id}/servers", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ListServers, error) {
		connect, err := host.Flag(r, "connect")
		return api.ListServers{Agent: r.PathValue("id"), Connect: connect}, err
	}, x.listServers))
}
