package router

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/surface"
)

// maxCallBody is the largest body of a model call over HTTP, in bytes.
const maxCallBody = 8 << 20

// Headers of a model call over HTTP.
const (
	headerAgent = "Anima-Agent"     // id of the agent that pays; the request's own field for a user has the same meaning
	headerTask  = "Anima-Task"      // task of the routing matrix; agent_turn if it is missing
	headerKey   = "Idempotency-Key" // a repeated request with the same key gets the stored answer
)

// httpRoutes adds the routes of the HTTP surfaces: the protocols of OpenAI and Anthropic
// before the same calls as over NATS.
func (h *handlers) httpRoutes(routes host.Routes) {
	h.httpModels(routes, "GET /v1/models", surface.OpenAI{})
	h.httpModels(routes, "GET /anthropic/v1/models", surface.Anthropic{})
	for pattern, d := range map[string]surface.Dialect{
		"POST /v1/chat/completions":   surface.OpenAI{},
		"POST /v1/responses":          surface.Responses{},
		"POST /anthropic/v1/messages": surface.Anthropic{},
	} {
		routes.Keyed(pattern, api.ScopeSpend, d.Refuse, func(w http.ResponseWriter, r *http.Request) { h.httpCall(w, r, d) })
	}
	routes.Keyed("POST /anthropic/v1/messages/count_tokens", api.ScopeSpend, surface.Anthropic{}.Refuse, h.httpCount)
	// The clients of the protocol cannot read the error of the host for a path without a
	// route. Below /v1/ it stays, because the routes of the other services are there, too.
	routes.Public("/anthropic/", func(w http.ResponseWriter, r *http.Request) {
		err := &api.Error{Code: api.NotFound, Message: fmt.Sprintf("%s %.200s is not served here", r.Method, r.URL.Path), Next: "see docs/http.md for the routes"}
		surface.Anthropic{}.Refuse(w, host.StatusOf(err), err)
	})
}

// httpModels adds the routes for the usable models, and for one of them, in the format of a
// protocol. The id of a model may have slashes.
func (h *handlers) httpModels(routes host.Routes, pattern string, d surface.Lister) {
	usable := func(r *http.Request) ([]api.Model, error) {
		all, err := h.listModels(r.Context(), api.ListModels{})
		return slices.DeleteFunc(all.Models, func(m api.Model) bool { return !m.Usable }), err
	}
	routes.Keyed(pattern, api.ScopeRead, d.Refuse, func(w http.ResponseWriter, r *http.Request) {
		list, err := usable(r)
		if err != nil {
			d.Refuse(w, host.StatusOf(err), err)
			return
		}
		d.Models(w, list)
	})
	routes.Keyed(pattern+"/{model...}", api.ScopeRead, d.Refuse, func(w http.ResponseWriter, r *http.Request) {
		list, err := usable(r)
		id := r.PathValue("model")
		i := slices.IndexFunc(list, func(m api.Model) bool { return m.ID == id })
		if err == nil && i < 0 {
			err = &api.Error{Code: api.NotFound, Reason: api.ReasonNoModel, Message: fmt.Sprintf("there is no usable model %.80q", id), Next: pattern + " lists the models"}
		}
		if err != nil {
			d.Refuse(w, host.StatusOf(err), err)
			return
		}
		d.Model(w, list[i])
	})
}

// httpCall makes one model call for an HTTP caller. When the caller disconnects, the call
// is canceled at the provider, and what was generated is billed. After a crash the caller
// repeats the request with its key: a stored answer is returned without another payment.
func (h *handlers) httpCall(w http.ResponseWriter, r *http.Request, d surface.Dialect) {
	h.httpPrompt(w, r, d, d.Read, func(in surface.Request, req callRequest) {
		head := surface.Head{ID: req.ID, Model: in.Model, Created: h.now().Unix(), Usage: in.Usage}
		if !in.Stream {
			answer, err := h.stored(r.Context(), req, func(api.Delta) error { return nil })
			if err != nil {
				refuse(w, d, err)
				return
			}
			d.Answer(w, head, answer)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		out := newHTTPStream(d.Stream(w, head), cancel, commentEvery)
		defer out.stop()
		answer, err := h.stored(ctx, req, out.delta)
		out.end(answer, err, func(err error) { refuse(w, d, err) })
	})
}

// httpCount answers with the estimate of the tokens of a prompt. Nothing is held or paid, and
// no model is called.
func (h *handlers) httpCount(w http.ResponseWriter, r *http.Request) {
	d := surface.Anthropic{}
	h.httpPrompt(w, r, d, d.ReadCount, func(_ surface.Request, req callRequest) {
		if err := check(req); err != nil {
			refuse(w, d, err)
			return
		}
		d.Count(w, h.promptTokens(req))
	})
}

// httpPrompt reads and checks the request of a model call and passes it to use. The request
// has a part of the memory until use returns. httpPrompt answers a request that cannot be
// read or made.
func (h *handlers) httpPrompt(w http.ResponseWriter, r *http.Request, d surface.Dialect, read func([]byte) (surface.Request, error), use func(surface.Request, callRequest)) {
	size := r.ContentLength
	if size < 0 || size > maxCallBody { // unknown, or refused below
		size = maxCallBody
	}
	memory, err := h.httpMemory.Reserve(r.Context(), size)
	if err != nil {
		// A client that is still sending would not read the answer.
		_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxCallBody)) // the answer is the same if it fails
		refuse(w, d, err)
		return
	}
	defer memory.Free()
	body, err := host.ReadBody(w, r, maxCallBody)
	if err != nil {
		d.Refuse(w, host.StatusOf(err), err)
		return
	}
	memory.Shrink(int64(len(body)))
	in, err := read(body)
	if err != nil {
		d.Refuse(w, host.StatusOf(err), err)
		return
	}
	req, err := h.httpRequest(r, in, body)
	if err != nil {
		d.Refuse(w, host.StatusOf(err), err)
		return
	}
	use(in, req)
}

// stored makes a call for an HTTP caller, who cannot confirm it later: once the answer is
// stored, a settlement that fails is no error, because it is repeated.
func (h *handlers) stored(ctx context.Context, req callRequest, send func(api.Delta) error) (api.Completion, error) {
	var early atomic.Pointer[api.Completion]
	answer, err := h.completion(ctx, req, func(d api.Delta) error {
		if d.Answer != nil {
			early.Store(d.Answer)
		}
		return send(d)
	})
	if c := early.Load(); err != nil && c != nil {
		return *c, nil
	}
	return answer, err
}

// httpRequest returns the call of an HTTP request. See [handlers.tierOf] for the tier. A
// model that is not registered is an error: the caller has misspelled it, and would pay for
// another one. The model of an agent is a preference instead, because its AGENT.md is kept
// while models come and go.
func (h *handlers) httpRequest(r *http.Request, in surface.Request, body []byte) (callRequest, error) {
	agent, caller := r.Header.Get(headerAgent), host.CallerOf(r.Context())
	if agent == "" && caller.Operator() {
		agent = in.User
	}
	agent = strings.ToLower(agent) // the id of an agent is its name in lower case
	if !caller.Operator() {
		var err error
		if agent, err = caller.Acts(agent); err != nil {
			return callRequest{}, err
		}
	}
	if !api.ValidKey(agent) {
		return callRequest{}, &api.Error{
			Code: api.Invalid, Message: "the request does not name the agent that pays",
			Next: "send its id in the header " + headerAgent + ", or as the user of the request",
		}
	}
	if !h.models.exists(r.Context(), in.Model) {
		return callRequest{}, &api.Error{
			Code: api.NotFound, Reason: api.ReasonNoModel, Message: fmt.Sprintf("there is no model %.80q", in.Model),
			Next: "name a model of GET /v1/models, or a class of models: " + strings.Join(model.Classes(), ", "),
		}
	}
	key := r.Header.Get(headerKey)
	fresh := key == ""
	if fresh {
		key = freshKey(h.now())
	}
	req := callRequest{
		Complete: api.Complete{
			ID: "http/" + agent + "/" + key, Agent: agent, Turn: "http/" + key, Task: api.TaskTurn, Model: in.Model,
			Messages: in.Messages, Tools: in.Tools, MaxTokens: in.MaxTokens,
		},
		options: in.Options, fresh: fresh, keyed: !caller.Operator(),
	}
	if task := r.Header.Get(headerTask); task != "" {
		req.Task = api.Task(task)
		if !slices.Contains(api.Tasks(), req.Task) {
			return callRequest{}, notTask(req.Task)
		}
	}
	if !fresh {
		var err error
		if req.request, err = hashOf(r.URL.Path, body); err != nil {
			return req, err
		}
	}
	switch {
	case len(req.ID) > maxID:
		return req, api.Errorf(api.Invalid, "the header %s is longer than %d bytes", headerKey, maxID-len("http/")-len(agent)-1)
	case !utf8.ValidString(key): // a message to treasury would change it
		return req, api.Errorf(api.Invalid, "the header %s is not UTF-8", headerKey)
	}
	var err error
	req.Tier, err = h.tierOf(r.Context(), agent)
	return req, err
}

// hashOf returns the hash of a request to a route. A request may be repeated as a stream, and
// with its fields in another order.
func hashOf(path string, body []byte) (string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return "", err
	}
	delete(fields, "stream")
	delete(fields, "stream_options")
	data, err := api.Encode(fields)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append([]byte(path+"\n"), data...))
	return hex.EncodeToString(sum[:]), nil
}

// freshKey returns a key that no other request has. Keys of later times are greater, so
// that the rows of calls, holds and transactions are added at the ends of their indexes: a
// commit then writes fewer pages.
func freshKey(now time.Time) string {
	return strconv.FormatInt(now.UnixMicro(), 36) + "-" + rand.Text()
}

// refuse writes an error with its status and, where a later request may succeed, the time
// to wait.
func refuse(w http.ResponseWriter, d surface.Dialect, err error) {
	status := host.StatusOf(err)
	host.SetRetryAfter(w, status, err)
	if reason := api.ReasonOf(err); api.OverLimit(reason) || reason == api.ReasonKeyTaken || reason == api.ReasonAttempts { // the official clients would repeat the request at once
		w.Header().Set("X-Should-Retry", "false")
	}
	d.Refuse(w, status, err)
}

// commentEvery is how long a stream is silent until it gets a comment. Clients warn after
// 20 s without a byte, and proxies close such a connection, mostly after 60 s. A model may
// take longer to its first text, and a call of a tool is only sent when it is complete.
const commentEvery = 15 * time.Second

// httpStream sends the deltas of a call to an HTTP caller, and a comment when there is none
// for a time. It is safe for concurrent use.
type httpStream struct {
	stream surface.Stream
	cancel context.CancelFunc // ends the call
	every  time.Duration      // between two comments

	mu        sync.Mutex
	silence   *time.Timer     // until the next comment
	sent      strings.Builder // text that the caller has
	commented bool            // the answer has begun with a comment
	broken    bool            // the caller has text of a failed attempt, or has disconnected
	ended     bool            // nothing more is written
}

func newHTTPStream(stream surface.Stream, cancel context.CancelFunc, every time.Duration) *httpStream {
	s := &httpStream{stream: stream, cancel: cancel, every: every}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silence = time.AfterFunc(every, s.comment)
	return s
}

// comment writes a comment and schedules the next one.
func (s *httpStream) comment() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.broken {
		return
	}
	if s.commented = true; s.stream.Comment() != nil {
		s.broken = true
		s.cancel()
		return
	}
	s.silence.Reset(s.every)
}

// stop ends the comments.
func (s *httpStream) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.silence.Stop()
}

// errRestarted is the error of a stream whose text cannot be taken back.
var errRestarted = &api.Error{
	Code: api.Unavailable, Reason: api.ReasonProvider, Message: "the model failed after the beginning of its answer",
	Next: "send the request again",
}

// delta sends the text of a delta. If the text that was sent is void, it ends the call:
// the protocols cannot take text back.
func (s *httpStream) delta(d api.Delta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		return nil
	}
	piece := d.Content
	if d.Discard && s.sent.Len() > 0 {
		// A repeated text is cut after its first occurrence: what was sent continues it.
		s.broken = piece == "" || !strings.HasPrefix(s.sent.String(), piece)
		piece = ""
	}
	if piece != "" && !s.broken {
		s.sent.WriteString(piece)
		s.broken = s.stream.Text(piece) != nil
		s.silence.Reset(s.every)
	}
	if s.broken {
		s.cancel()
	}
	return nil
}

// end sends the end of the answer, or the error. An error before the first text and the
// first comment is a whole answer with its status.
func (s *httpStream) end(c api.Completion, err error, refuse func(error)) {
	s.stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.broken:
		_ = s.stream.Fail(http.StatusBadGateway, errRestarted) // the caller may have disconnected
	case err != nil && s.sent.Len() == 0 && !s.commented:
		refuse(err)
	case err != nil:
		_ = s.stream.Fail(host.StatusOf(err), err)
	default:
		// A stored answer comes without deltas.
		if rest, ok := strings.CutPrefix(c.Text, s.sent.String()); ok && rest != "" && s.stream.Text(rest) != nil {
			return
		}
		_ = s.stream.End(c)
	}
}
