package loop

import (
	"net/http"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"
)

// registerLists registers the routes about lists of sessions and turns. Lists accept limit and after, and return more and next for the following
// page.
func (h *handlers) registerLists(r host.Routes) {
	r.Handle("DELETE /v1/agents/{id}", host.Answer(readDelete, h.deleteAgent))
	r.Handle("GET /v1/sessions", host.Answer(readSessions, h.listSessions))
	r.Handle("GET /v1/sessions/{id}", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.GetSession, error) {
		return api.GetSession{Session: r.PathValue("id")}, nil
	}, h.getSession))
	r.Handle("POST /v1/agents/{id}/sessions", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.CreateSession, error) {
		return api.CreateSession{Agent: r.PathValue("id"), ID: r.Header.Get("Idempotency-Key")}, nil
	}, h.createSession))
	r.Handle("GET /v1/turns", host.Answer(readTurns, h.listTurns))
}

func readDelete(_ http.ResponseWriter, r *http.Request) (api.DeleteAgent, error) {
	m := api.DeleteAgent{Agent: r.PathValue("id"), Reason: r.URL.Query().Get("reason")}
	var err error
	if m.Force, err = host.Flag(r, "force"); err != nil {
		return m, err
	}
	m.Forget, err = host.Flag(r, "forget")
	return m, err
}

func readSessions(_ http.ResponseWriter, r *http.Request) (api.ListSessions, error) {
	limit, err := host.Limit(r)
	q := r.URL.Query()
	return api.ListSessions{Agent: q.Get("agent"), After: q.Get("after"), Limit: limit}, err
}

func readTurns(_ http.ResponseWriter, r *http.Request) (api.ListTurns, error) {
	limit, err := host.Limit(r)
	q := r.URL.Query()
	return api.ListTurns{Agent: q.Get("agent"), Session: q.Get("session"), Run: q.Get("run"), Before: q.Get("after"), Limit: limit}, err
}

func (g *goalHandlers) registerHTTP(r host.Routes) {
	r.Handle("GET /v1/goals", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ListGoals, error) {
		limit, err := host.Limit(r)
		q := r.URL.Query()
		return api.ListGoals{Agent: q.Get("agent"), Status: api.GoalStatus(q.Get("status")), After: q.Get("after"), Limit: limit}, err
	}, g.list))
	r.Handle("GET /v1/goals/{id}", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.GetGoal, error) {
		return api.GetGoal{Goal: r.PathValue("id")}, nil
	}, g.get))
	r.Handle("DELETE /v1/goals/{id}", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.CancelGoal, error) {
		return api.CancelGoal{Goal: r.PathValue("id"), Reason: r.URL.Query().Get("reason")}, nil
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
	routes.Handle("DELETE /v1/agents/{id}/memories/{tier}/{memory...}", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ForgetMemory, error) {
		return api.ForgetMemory{Agent: r.PathValue("id"), Tier: api.MemoryTier(r.PathValue("tier")), ID: r.PathValue("memory")}, nil
	}, r.forget))
	routes.Handle("GET /v1/agents/{id}/souls", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ListSouls, error) {
		limit, err := host.Limit(r)
		return api.ListSouls{Agent: r.PathValue("id"), After: r.URL.Query().Get("after"), Limit: limit}, err
	}, r.souls))
}

func (x toolHandlers) registerHTTP(r host.Routes) {
	r.Handle("GET /v1/tools", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ListTools, error) {
		return api.ListTools{Agent: r.URL.Query().Get("agent")}, nil
	}, x.listTools))
	r.Handle("POST /v1/agents/{id}/check", host.Answer(func(w http.ResponseWriter, r *http.Request) (api.CheckTool, error) {
		var m api.CheckTool
		err := host.ReadJSON(w, r, 512<<10, &m)
		m.Agent = r.PathValue("id")
		return m, err
	}, x.checkTool))
	r.Handle("GET /v1/agents/{id}/skills", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ListSkills, error) {
		return api.ListSkills{Agent: r.PathValue("id")}, nil
	}, x.listSkills))
	r.Handle("GET /v1/agents/{id}/skills/{skill}", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.GetSkill, error) {
		return api.GetSkill{Agent: r.PathValue("id"), Skill: r.PathValue("skill")}, nil
	}, x.getSkill))
	r.Handle("GET /v1/agents/{id}/servers", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ListServers, error) {
		connect, err := host.Flag(r, "connect")
		return api.ListServers{Agent: r.PathValue("id"), Connect: connect}, err
	}, x.listServers))
}
