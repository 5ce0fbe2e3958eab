package loop

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/loop/internal/agent"
)

// registerHTTP registers the HTTP routes of loop (docs/http.md). Each corresponds to a bus
// route. Lists accept limit and after, and return more and next for the following page.
func (h *handlers) registerHTTP(r host.Routes) {
	h.goals.registerHTTP(r)
	h.memories.registerHTTP(r)
	h.tools.registerHTTP(r)
	r.Public("GET /.well-known/agent-card.json", h.httpCard)
	r.Handle("PUT /v1/agents", h.httpApply)
	r.Handle("PUT /v1/agents/{id}", h.httpApply)
	r.Handle("GET /v1/agents", fromPage(func(r *http.Request, limit int) api.ListAgents {
		return api.ListAgents{After: r.URL.Query().Get("after"), Limit: limit}
	}, h.listAgents))
	r.Handle("GET /v1/agents/{id}", fromURL(func(r *http.Request) api.GetAgent { return api.GetAgent{Agent: r.PathValue("id")} }, h.getAgent))
	r.Handle("DELETE /v1/agents/{id}", host.Answer(readDelete, h.deleteAgent))
	r.Handle("GET /v1/agents/{id}/explain", fromPage(func(r *http.Request, limit int) api.ExplainAgent {
		return api.ExplainAgent{Agent: r.PathValue("id"), Limit: limit}
	}, h.explainAgent))
	r.Handle("POST /v1/agents/{id}/wake", fromBody(func(r *http.Request, b reasoned) api.RequestWake {
		return api.RequestWake{Agent: r.PathValue("id"), Cause: "creator-" + uuid.NewString(), Reason: b.Reason}
	}, h.wakeAgent))
	r.Handle("POST /v1/agents/{id}/sleep", fromBody(func(r *http.Request, b sleeping) api.SleepAgent {
		return api.SleepAgent{Agent: r.PathValue("id"), Until: b.Until, Reason: b.Reason}
	}, h.sleepAgent))
	r.Handle("GET /v1/sessions", fromPage(func(r *http.Request, limit int) api.ListSessions {
		q := r.URL.Query()
		return api.ListSessions{Agent: q.Get("agent"), After: q.Get("after"), Limit: limit}
	}, h.listSessions))
	r.Handle("GET /v1/sessions/{id}", fromURL(func(r *http.Request) api.GetSession { return api.GetSession{Session: r.PathValue("id")} }, h.getSession))
	r.Handle("POST /v1/agents/{id}/sessions", fromURL(func(r *http.Request) api.CreateSession {
		return api.CreateSession{Agent: r.PathValue("id"), ID: r.Header.Get("Idempotency-Key")}
	}, h.createSession))
	r.Handle("POST /v1/sessions/{id}/messages", host.Answer(h.readMessage, h.sendMessage))
	r.Handle("POST /v1/sessions/{id}/terminate", fromBody(func(r *http.Request, b reasoned) api.TerminateSession {
		return api.TerminateSession{Session: r.PathValue("id"), Reason: b.Reason}
	}, h.terminateSession))
	r.Handle("POST /v1/sessions/{id}/reset", fromURL(func(r *http.Request) api.ResetSession { return api.ResetSession{Session: r.PathValue("id")} }, h.resetSession))
	r.Handle("GET /v1/sessions/{id}/events", h.httpEvents)
	r.Handle("GET /v1/sessions/{id}/transcript", h.httpTranscript)
	r.Handle("GET /v1/runs/{id}", fromURL(func(r *http.Request) api.GetRun {
		return api.GetRun{Run: r.PathValue("id"), Session: r.URL.Query().Get("session")}
	}, h.getRun))
	r.Handle("DELETE /v1/runs/{id}", fromURL(func(r *http.Request) api.CancelRun {
		q := r.URL.Query()
		return api.CancelRun{Run: r.PathValue("id"), Session: q.Get("session"), Reason: q.Get("reason")}
	}, h.cancelRun))
	r.Handle("GET /v1/turns", fromPage(func(r *http.Request, limit int) api.ListTurns {
		q := r.URL.Query()
		return api.ListTurns{Agent: q.Get("agent"), Session: q.Get("session"), Run: q.Get("run"), Before: q.Get("after"), Limit: limit}
	}, h.listTurns))
	r.Handle("GET /v1/turns/{id}", fromURL(func(r *http.Request) api.GetTurn { return api.GetTurn{Turn: r.PathValue("id")} }, h.getTurn))
}

// fromURL answers requests without a body, whose URL and header are the whole message.
func fromURL[M, R any](read func(*http.Request) M, answer func(context.Context, M) (R, error)) http.HandlerFunc {
	return host.Answer(func(_ http.ResponseWriter, r *http.Request) (M, error) { return read(r), nil }, answer)
}

// fromPage is fromURL for a message with the query parameter limit.
func fromPage[M, R any](read func(*http.Request, int) M, answer func(context.Context, M) (R, error)) http.HandlerFunc {
	return host.Answer(func(_ http.ResponseWriter, r *http.Request) (M, error) {
		limit, err := host.Limit(r)
		return read(r, limit), err
	}, answer)
}

// reasoned is the body of requests that may have a reason.
type reasoned struct {
	Reason string `json:"reason"`
}

// sleeping is the body of a request to sleep.
type sleeping struct {
	Until  int64  `json:"until"` // Unix microseconds
	Reason string `json:"reason"`
}

// fromBody answers requests with an optional body.
func fromBody[B, M, R any](read func(*http.Request, B) M, answer func(context.Context, M) (R, error)) http.HandlerFunc {
	return host.Answer(func(w http.ResponseWriter, r *http.Request) (m M, err error) {
		var body B
		if r.ContentLength != 0 {
			err = host.ReadJSON(w, r, 64<<10, &body)
		}
		return read(r, body), err
	}, answer)
}

// httpApply reads an AGENT.md as the request body.
func (h *handlers) httpApply(w http.ResponseWriter, r *http.Request) {
	body, err := host.ReadBody(w, r, agent.MaxFile)
	if err != nil {
		host.WriteError(w, 0, err)
		return
	}
	v, err := h.applyNamed(r.Context(), api.ApplyAgent{Source: string(body)}, r.PathValue("id"))
	host.WriteJSON(w, v, err)
}

// wakeAgent requests a wake of an agent that exists.
func (h *handlers) wakeAgent(ctx context.Context, m api.RequestWake) (api.Wake, error) {
	agent, err := h.getAgent(ctx, api.GetAgent{Agent: m.Agent})
	if err != nil {
		return api.Wake{}, err
	}
	m.Agent = agent.ID
	return bus.Call[api.Wake](ctx, h.bus, m)
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

// readMessage reads a message to a session that exists.
func (h *handlers) readMessage(w http.ResponseWriter, r *http.Request) (api.SendMessage, error) {
	var body struct {
		Content string   `json:"content"`
		Mode    api.Mode `json:"mode"`
	}
	// JSON may encode each byte of the text as six bytes.
	if err := host.ReadJSON(w, r, 6*api.MaxMessageBytes+1024, &body); err != nil {
		return api.SendMessage{}, err
	}
	s, err := h.store.Session(r.Context(), r.PathValue("id"))
	return api.SendMessage{Agent: s.Agent, Session: s.ID, Content: body.Content, Mode: body.Mode, ID: r.Header.Get("Idempotency-Key")}, err
}

// httpTranscript writes the transcript as JSON Lines (docs/reference/context.md,
// Transcript format).
func (h *handlers) httpTranscript(w http.ResponseWriter, r *http.Request) {
	if _, err := h.store.Session(r.Context(), r.PathValue("id")); err != nil {
		host.WriteError(w, 0, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for after, more := int64(0), true; more; {
		page, err := h.store.Transcript(r.Context(), r.PathValue("id"), after, 500)
		if err != nil {
			h.log.ErrorContext(r.Context(), "transcript cut short", "err", err)
			panic(http.ErrAbortHandler) // so that the client does not treat the part as complete
		}
		for _, l := range page.Lines {
			if err := enc.Encode(l); err != nil {
				return // the client has disconnected
			}
			after = l.Seq
		}
		more = page.More
	}
}
