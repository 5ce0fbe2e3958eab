package openai

import (
	"net/http"
	"strings"
	"sync"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// dialect holds the parts of the protocol that a server has refused. The zero value is
// the whole protocol.
type dialect struct {
	noStreamOptions bool             // answers 400 to stream_options
	noStream        bool             // answers 400 to stream
	noTools         bool             // answers 400 to tools; see [plain]
	noEffort        bool             // answers 400 to the effort of reasoning of this request
	tokens          model.TokenParam // field for the output limit; empty: as the request says
}

// dialects stores the dialects of a server in memory: stream_options for the whole server,
// everything else for each model, because servers such as Ollama and OpenAI differ by model
// there. The zero value is ready to use.
type dialects struct {
	mu      sync.Mutex
	server  dialect // only noStreamOptions
	models  map[string]dialect
	efforts provider.RefusedEfforts
}

// of returns the dialect for a request.
func (d *dialects) of(req provider.Request) dialect {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := d.models[req.Model]
	all.noEffort = d.efforts.Has(req.Model, req.Effort)
	all.noStreamOptions = d.server.noStreamOptions
	return all
}

// keep stores the dialect in which a request succeeded.
func (d *dialects) keep(req provider.Request, got dialect) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.models == nil {
		d.models = map[string]dialect{}
	}
	if got.noEffort {
		d.efforts.Add(req.Model, req.Effort)
	}
	d.server.noStreamOptions = d.server.noStreamOptions || got.noStreamOptions && !got.noStream // the usage of other models is in their streams
	known := d.models[req.Model]
	known.noStream = known.noStream || got.noStream
	known.noTools = known.noTools || got.noTools
	if got.tokens != "" {
		known.tokens = got.tokens
	}
	d.models[req.Model] = known
}

// reduced returns the dialect in which to repeat a request that the server refused in
// dialect d. It returns false if the refusal names no part that the request can omit: in its
// message, its code or its param, because some messages of OpenAI name only the value. Each
// reduction removes one part, so a request is sent at most six times.
func (d dialect) reduced(req provider.Request, fault *provider.Error) (dialect, bool) {
	if fault.Status != http.StatusBadRequest && fault.Status != http.StatusUnprocessableEntity && fault.Status != http.StatusNotImplemented {
		return d, false
	}
	text := strings.ToLower(fault.Message + " " + fault.Refused)
	if !refusesField(text) {
		return d, false
	}
	asked := d.tokens
	if asked == "" {
		asked = req.TokenParam
	}
	switch {
	case !d.noStreamOptions && !d.noStream && strings.Contains(text, "stream_options"):
		d.noStreamOptions = true
	case d.tokens == "" && asked == model.MaxCompletionTokens && strings.Contains(text, "max_completion_tokens"):
		d.tokens = model.MaxTokens
	case d.tokens == "" && asked != model.MaxCompletionTokens && strings.Contains(text, "max_tokens"):
		d.tokens = model.MaxCompletionTokens
	case !d.noEffort && req.Effort != "" && strings.Contains(text, "reasoning"):
		d.noEffort = true
	case !d.noTools && req.Offers() && namesTools(req, text):
		d.noTools = true
	case !d.noStream && strings.Contains(text, "stream"):
		d.noStream, d.noStreamOptions = true, true
	default:
		return d, false
	}
	return d, true
}

// refusesField reports whether a message has words with which servers refuse a field of a
// request.
func refusesField(text string) bool {
	for _, words := range []string{
		"support", "unknown", "unrecognized", "unrecognised", "unexpected", "not permitted", "not allowed", "not implemented",
		"not available", "not enabled", "extra fields", "extra inputs", "extra_forbidden", "additional propert", "invalid field", "requires --",
	} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// namesTools distinguishes a refusal of tools from the refusal of a single definition,
// which names its position: tools[3].function.parameters, and from the refusal of an
// option that the caller chose.
func namesTools(req provider.Request, text string) bool {
	if strings.Contains(text, "tools[") || strings.Contains(text, "tools.") || strings.Contains(text, "schema") ||
		strings.Contains(text, "parallel_tool_calls") || req.ToolChoice != "" && strings.Contains(text, "tool_choice") {
		return false
	}
	return strings.Contains(text, "tool") || strings.Contains(text, "function call")
}
