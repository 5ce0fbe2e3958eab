package loop

import (
	"net/http"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
)

func (g *goalHandlers) registerHTTP(r host.Routes) {
	r.Handle("GET /v1/goals", fromPage(func(r *http.Request, limit int) api.ListGoals {
		q := r.URL.Query()
		return api.ListGoals{Agent: q.Get("agent"), Status: api.GoalStatus(q.Get("status")), After: q.Get("after"), Limit: limit}
	}, g.list))
	r.Handle("GET /v1/goals/{id}", fromURL(func(r *http.Request) api.GetGoal { return api.GetGoal{Goal: r.PathValue("id")} }, g.get))
	r.Handle("DELETE /v1/goals/{id}", fromURL(func(r *http.Request) api.CancelGoal {
		return api.CancelGoal{Goal: r.PathValue("id"), Reason: r.URL.Query().Get("reason")}
	}, g.cancel))
	r.Handle("POST /v1/goals/{id}/review", host.Answer(readReview, g.review))
}

func readReview(w http.ResponseWriter, r *http.Request) (api.ReviewPlan, error) {
	var body struct {
		Version  int    `json:"version"`
		Approve  *bool  `json:"approve"`
		Feedback string `json:"feedback"`
	}
	if err := host.ReadJSON(w, r, 64<<10, &body); err != nil {
		return api.ReviewPlan{}, err
	}
	if body.Approve == nil || body.Version < 1 {
		return api.ReviewPlan{}, &api.Error{Code: api.Invalid, Message: "a review needs version and approve", Next: "name the version that GET /v1/goals/{id} shows as waiting, and true or false"}
	}
	return api.ReviewPlan{Goal: r.PathValue("id"), Version: body.Version, Approve: *body.Approve, Feedback: body.Feedback}, nil
}

func (r memoryHandlers) registerHTTP(routes host.Routes) {
	routes.Handle("GET /v1/agents/{id}/memories", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ListMemory, error) {
		q := r.URL.Query()
		m := api.ListMemory{Agent: r.PathValue("id"), Tier: api.MemoryTier(q.Get("tier")), Query: q.Get("query")}
		var err error
		if m.Limit, err = host.Limit(r); err != nil {
			return m, err
		}
		m.History, err = host.Flag(r, "history")
		return m, err
	}, r.list))
	routes.Handle("DELETE /v1/agents/{id}/memories/{tier}/{memory...}", fromURL(func(r *http.Request) api.ForgetMemory {
		return api.ForgetMemory{Agent: r.PathValue("id"), Tier: api.MemoryTier(r.PathValue("tier")), ID: r.PathValue("memory")}
	}, r.forget))
	routes.Handle("GET /v1/agents/{id}/souls", fromPage(func(r *http.Request, limit int) api.ListSouls {
		return api.ListSouls{Agent: r.PathValue("id"), After: r.URL.Query().Get("after"), Limit: limit}
	}, r.souls))
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
