package loop

import (
	"encoding/json"
	"net/http"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/loop/internal/agent"
)

// registerHTTP registers the HTTP routes of loop (docs/http.md). Each corresponds to a bus
// route.
func (h *handlers) registerHTTP(r host.Routes) {
	h.registerLists(r)
	h.goals.registerHTTP(r)
	h.memories.registerHTTP(r)
	h.tools.registerHTTP(r)
	r.Handle("PUT /v1/agents", h.httpApply)
	r.Handle("PUT /v1/agents/{id}", h.httpApply)
	r.Handle("GET /v1/agents", host.Answer(func(_ http.ResponseWriter, r *http.Request) (api.ListAgents, error) {
		limit, err := host.Limit(r)
		return api.ListAgents{After: r.URL.Query().Get("after"), Limit: limit}, err
	}, h.listAgents))
	r.Handle("GET /v1/agents/{id}", func(w http.ResponseWriter, r *http.Request) {
		v, err := h.getAgent(r.Context(), api.GetAgent{Agent: r.PathValue("id")})
		host.WriteJSON(w, v, err)
	})
	r.Handle("GET /v1/agents/{id}/explain", h.httpExplain)
	r.Handle("POST /v1/agents/{id}/wake", h.httpWake)
	r.Handle("POST /v1/agents/{id}/sleep", h.httpSleep)
	r.Handle("POST /v1/sessions/{id}/messages", h.httpSend)
	r.Handle("POST /v1/sessions/{id}/terminate", h.httpTerminate)
	r.Handle("POST /v1/sessions/{id}/reset", func(w http.ResponseWriter, r *http.Request) {
		v, err := h.resetSession(r.Context(), api.ResetSession{Session: r.PathValue("id")})
		host.WriteJSON(w, v, err)
	})
	r.Handle("GET /v1/sessions/{id}/events", h.httpEvents)
	r.Handle("GET /v1/sessions/{id}/transcript", h.httpTranscript)
	r.Handle("GET /v1/runs/{id}", func(w http.ResponseWriter, r *http.Request) {
		v, err := h.getRun(r.Context(), api.GetRun{Run: r.PathValue("id"), Session: r.URL.Query().Get("session")})
		host.WriteJSON(w, v, err)
	})
	r.Handle("DELETE /v1/runs/{id}", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		v, err := h.cancelRun(r.Context(), api.CancelRun{Run: r.PathValue("id"), Session: q.Get("session"), Reason: q.Get("reason")})
		host.WriteJSON(w, v, err)
	})
	r.Handle("GET /v1/turns/{id}", func(w http.ResponseWriter, r *http.Request) {
		v, err := h.getTurn(r.Context(), api.GetTurn{Turn: r.PathValue("id")})
		host.WriteJSON(w, v, err)
	})
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

// optional decodes a request body that may be absent.
func optional(w http.ResponseWriter, r *http.Request, v any) error {
	if r.ContentLength == 0 {
		return nil
	}
	return host.ReadJSON(w, r, 64<<10, v)
}

func (h *handlers) httpWake(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Reason string `json:"reason"`
	}
	if err := optional(w, r, &body); err != nil {
		host.WriteError(w, 0, err)
		return
	}
	agent, err := h.getAgent(r.Context(), api.GetAgent{Agent: r.PathValue("id")})
	if err != nil {
		host.WriteError(w, 0, err)
		return
	}
	v, err := bus.Call[api.Wake](r.Context(), h.bus, api.RequestWake{Agent: agent.ID, Cause: "creator-" + uuid.NewString(), Reason: body.Reason})
	host.WriteJSON(w, v, err)
}

func (h *handlers) httpSleep(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Until  int64  `json:"until"` // Unix microseconds
		Reason string `json:"reason"`
	}
	if err := optional(w, r, &body); err != nil {
		host.WriteError(w, 0, err)
		return
	}
	v, err := h.sleepAgent(r.Context(), api.SleepAgent{Agent: r.PathValue("id"), Until: body.Until, Reason: body.Reason})
	host.WriteJSON(w, v, err)
}

func (h *handlers) httpTerminate(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Reason string `json:"reason"`
	}
	if err := optional(w, r, &body); err != nil {
		host.WriteError(w, 0, err)
		return
	}
	v, err := h.terminateSession(r.Context(), api.TerminateSession{Session: r.PathValue("id"), Reason: body.Reason})
	host.WriteJSON(w, v, err)
}

func (h *handlers) httpExplain(w http.ResponseWriter, r *http.Request) {
	limit, err := host.Limit(r)
	if err != nil {
		host.WriteError(w, 0, err)
		return
	}
	v, err := h.explainAgent(r.Context(), api.ExplainAgent{Agent: r.PathValue("id"), Limit: limit})
	host.WriteJSON(w, v, err)
}

func (h *handlers) httpSend(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Content string   `json:"content"`
		Mode    api.Mode `json:"mode"`
	}
	// JSON may encode each byte of the text as six bytes.
	if err := host.ReadJSON(w, r, 6*api.MaxMessageBytes+1024, &body); err != nil {
		host.WriteError(w, 0, err)
		return
	}
	s, err := h.store.Session(r.Context(), r.PathValue("id"))
	if err != nil {
		host.WriteError(w, 0, err)
		return
	}
	v, err := h.sendMessage(r.Context(), api.SendMessage{
		Agent: s.Agent, Session: s.ID, Content: body.Content, Mode: body.Mode, ID: r.Header.Get("Idempotency-Key"),
	})
	host.WriteJSON(w, v, err)
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

// eventNames maps the names of the bus messages to the names of the HTTP events
// (docs/reference/loop.md, Events).
var eventNames = map[string]string{ //nolint:gochecknoglobals // a table
	"loop_start": "loop:start", "loop_context": "loop:context", "loop_execute": "loop:execute", "tool_start": "tool:start",
	"tool_end": "tool:end", "loop_persist": "loop:persist", "loop_end": "loop:end", "loop_error": "loop:error",
}
