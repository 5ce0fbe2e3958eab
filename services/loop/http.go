package loop

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/loop/internal/agent"
)

// routes registers the HTTP routes of loop (docs/http.md). Each corresponds to a bus
// route.
func (h *handlers) routes(r host.Routes) {
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

// httpEvents streams a session's events. The id of an event is its sequence in the
// stream, so a client that reconnects with Last-Event-ID misses none. If several events
// have the same sequence, only the last has the id: a client that was disconnected
// between them receives all of them again. Live events are not stored and have no id.
func (h *handlers) httpEvents(w http.ResponseWriter, r *http.Request) {
	session := r.PathValue("id")
	if _, err := h.store.Session(r.Context(), session); err != nil {
		host.WriteError(w, 0, err)
		return
	}
	var after uint64
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		n, err := strconv.ParseUint(last, 10, 64)
		if err != nil {
			host.WriteError(w, 0, &api.Error{Code: api.Invalid, Message: "Last-Event-ID " + strconv.Quote(last) + " is not a number", Next: "send the id of the last event you have, or none"})
			return
		}
		after = n
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	out := &eventWriter{w: w, flush: http.NewResponseController(w)}
	ctx, cancel := context.WithCancel(r.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for name, live := range map[string]api.Message{"stream:delta": api.StreamDelta{Session: session}, "loop:thinking": api.Thinking{Session: session}} {
		wg.Go(func() {
			defer cancel()
			err := h.bus.Listen(ctx, live.Subject().String(), func() {}, func(data []byte) {
				if out.write("", name, data) != nil {
					cancel()
				}
			})
			if err != nil && ctx.Err() == nil {
				h.log.WarnContext(ctx, "event stream ended", "err", err)
			}
		})
	}
	wg.Go(func() { defer cancel(); out.keepAlive(ctx) })
	if out.write("", "", nil) != nil {
		return
	}
	err := h.bus.Events(ctx, after, func(m bus.Stored) error {
		id := seqText(m.Sequence)
		if m.More {
			id = ""
		}
		return out.write(id, eventNames[strings.Split(m.Subject, ".")[3]], m.Data)
	}, bus.SessionEvents(session)...)
	if err != nil && ctx.Err() == nil {
		h.log.WarnContext(ctx, "event stream ended", "err", err)
	}
}

type eventWriter struct {
	mu    sync.Mutex
	w     io.Writer
	flush *http.ResponseController
}

// write sends one event, or a comment if name is "".
func (e *eventWriter) write(id, name string, data []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var b strings.Builder
	if name == "" {
		b.WriteString(":\n\n")
	} else {
		if id != "" {
			b.WriteString("id: " + id + "\n")
		}
		b.WriteString("event: " + name + "\ndata: ")
		b.Write(data) // JSON on one line
		b.WriteString("\n\n")
	}
	if _, err := io.WriteString(e.w, b.String()); err != nil {
		return err
	}
	if err := e.flush.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// keepAlive sends a comment every 15 s, so that proxies keep the connection open and a
// disconnect is detected.
func (e *eventWriter) keepAlive(ctx context.Context) {
	t := time.NewTicker(15 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if e.write("", "", nil) != nil {
				return
			}
		}
	}
}
