package router

import (
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// callRequest is a call with its prompt, which is in Messages and Tools or encoded.
type callRequest struct {
	api.Complete

	raw     *provider.EncodedPrompt // nil: the prompt is in Messages and Tools
	options provider.Options        // of a call over HTTP
	fresh   bool                    // the router made the id: nothing is stored of the call
	keyed   bool                    // the caller has an API key
	request string                  // hash of a request with an idempotency key; "" for any other
}

// checkRepeated returns a Conflict if the call with the id of this request, whose agent and
// hash are given, belongs to another agent or was another request with the same key. The
// hash of a call of an older release is "".
func (r callRequest) checkRepeated(agent, request string) error {
	switch {
	case agent != r.Agent:
		return api.Errorf(api.Conflict, "call %s belongs to another agent", r.ID)
	case request == "" || r.request == "" || request == r.request:
		return nil
	}
	return &api.Error{
		Code: api.Conflict, Reason: api.ReasonKeyTaken, Message: "the idempotency key was used for another request",
		Next: "send this one with a key of its own, or without one",
	}
}

// readRequest reads a call with an encoded prompt. It checks the encoded bytes,
// independently of any check by the caller. If they are normal, they are sent to the
// provider unchanged; otherwise the prompt is decoded.
func (h *handlers) readRequest(m api.CompleteV2) (callRequest, error) {
	req := callRequest{Complete: m.Call}
	offered, err := h.toolLists.of(m.Tools)
	if err != nil {
		return req, promptError(err)
	}
	size, normal := chat.Check(m.Messages)
	if normal && (offered.tools > 0 || size.Calls == 0) {
		req.raw = &provider.EncodedPrompt{
			Messages: m.Messages, Tools: m.Tools, Calls: size.Calls > 0, Offered: offered.tools,
			Tokens: size.Tokens + model.MessageTokens*(size.Messages+size.Calls) + offered.tokens, ToolTokens: offered.tokens,
		}
		return req, nil
	}
	if req.Messages, err = chat.Decode(m.Messages); err == nil {
		req.Tools, err = chat.DecodeTools(m.Tools)
	}
	return req, promptError(err)
}

func promptError(err error) error {
	if err == nil {
		return nil
	}
	return api.Errorf(api.Invalid, "the prompt cannot be read: %v", err)
}

// request returns the request to a model. It decodes and normalizes the prompt unless the
// encoded bytes can be sent unchanged.
func request(req callRequest, m model.Model, limit int64) (provider.Request, error) {
	out := provider.Request{Model: m.ID, MaxTokens: limit, TokenParam: m.TokenParam, Messages: req.Messages, Tools: req.Tools, Raw: req.raw, Options: req.options}
	if out.Raw != nil && (m.Tools || out.Raw.Offered == 0) {
		return out, nil
	}
	out, err := out.Decode()
	if !m.Tools {
		out.Tools = nil
	}
	out.Messages = chat.Normalize(out.Messages, len(out.Tools) > 0)
	return out, err
}

// toolLists caches lists of tools that were read, by their hash, because agents send the
// same list with each call. The zero value is ready to use.
type toolLists struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]toolList
}

// toolList is the number of tools in a list and an estimate of their tokens.
type toolList struct {
	tools  int
	tokens int64
}

// maxToolLists is the most entries of the cache; a full cache is emptied.
const maxToolLists = 1024

// of returns the size of an encoded list of tools.
func (k *toolLists) of(encoded []byte) (toolList, error) {
	sum := sha256.Sum256(encoded)
	k.mu.Lock()
	known, ok := k.all[sum]
	k.mu.Unlock()
	if ok {
		return known, nil
	}
	tools, err := chat.DecodeTools(encoded)
	if err != nil {
		return toolList{}, fmt.Errorf("its tools: %w", err)
	}
	known = toolList{len(tools), provider.ToolTokens(tools)}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil || len(k.all) >= maxToolLists {
		k.all = map[[sha256.Size]byte]toolList{}
	}
	k.all[sum] = known
	return known, nil
}
