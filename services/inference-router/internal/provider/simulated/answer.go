package simulated

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// maxQuote is the most bytes of a message that a template gets.
const maxQuote = 400

// state holds the parts of a conversation that the next answer depends on.
type state struct {
	user, system, toolResult string
	answered                 int // assistant messages after the last user message
}

func stateOf(messages []provider.Message) state {
	var m state
	var system []string
	for _, msg := range messages {
		switch msg.Role {
		case provider.System:
			system = append(system, msg.Content)
		case provider.User:
			if said := withoutNotes(msg.Content); said != "" {
				m.user, m.toolResult, m.answered = said, "", 0
			}
		case provider.Assistant:
			m.answered++
		case provider.ToolRole:
			m.toolResult = withoutNotes(msg.Content)
		}
	}
	m.system = strings.Join(system, "\n")
	return m
}

// withoutNotes returns a message without the notes that the agent's runtime appended:
// answers depend only on the message itself.
func withoutNotes(content string) string {
	said, _, _ := strings.Cut(content, api.NotesMark)
	return strings.TrimSpace(said)
}

// choose selects the rule and the step for a request. After the last step, or without
// one, it returns no step but the text of the answer.
func (c *compiled) choose(req provider.Request) (chosen *step, data templateData, text string, err error) {
	m := stateOf(req.Messages)
	data = templateData{User: quote(m.user), ToolResult: quote(m.toolResult)}
	var steps []*step
	for _, r := range c.rules {
		if r.system != nil && !r.system.MatchString(m.system) {
			continue
		}
		data.Match = []string{m.user}
		if r.lastUser != nil {
			if data.Match = r.lastUser.FindStringSubmatch(m.user); data.Match == nil {
				continue
			}
		}
		steps = answerable(r.steps, req.Tools)
		break
	}
	if m.answered < len(steps) {
		return steps[m.answered], data, "", nil
	}
	if len(steps) > 0 {
		if text, _, err = steps[len(steps)-1].render(data); err != nil {
			return nil, data, "", err
		}
	}
	if text == "" {
		text = "Done."
	}
	return nil, data, text, nil
}

// answerable removes the steps that only call tools that are not offered. All requests of a
// conversation offer the same tools, so the result is the same for each.
func answerable(steps []*step, tools []provider.Tool) []*step {
	var out []*step
	for _, s := range steps {
		if len(s.calls) == 0 || slices.ContainsFunc(s.calls, func(call callTemplate) bool { return offered(tools, call.name) }) {
			out = append(out, s)
		}
	}
	return out
}

func offered(tools []provider.Tool, name string) bool {
	return slices.ContainsFunc(tools, func(t provider.Tool) bool { return t.Name == name })
}

// answer returns the response to a request whose prompt has size tokens. It is
// deterministic.
func (c *compiled) answer(req provider.Request, size int64, s *step, data templateData, text string) (provider.Response, error) {
	digest := digestOf(req)
	res := provider.Response{ID: "chatcmpl-" + digest[:24], Model: req.Model, Text: text, Finish: provider.FinishStop}
	if s != nil {
		var arguments []string
		var err error
		if res.Text, arguments, err = s.render(data); err != nil {
			return provider.Response{}, err
		}
		for i, c := range s.calls {
			if !offered(req.Tools, c.name) {
				continue
			}
			sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", digest, i))
			res.ToolCalls = append(res.ToolCalls, provider.ToolCall{
				ID: "call_" + hex.EncodeToString(sum[:12]), Name: c.name, Arguments: arguments[i],
			})
			res.Finish = provider.FinishToolCalls
		}
	}
	fit(req, &res)
	res.Usage = provider.Usage{Input: size, Output: res.Estimate()} // the simulated model's own count
	return res, nil
}

// fit cuts the answer to the request's output limit, so that it never costs more than the
// hold: it drops tool calls from the end, then cuts the text.
func fit(req provider.Request, res *provider.Response) {
	over := func() bool { return req.MaxTokens > 0 && res.Estimate() > req.MaxTokens }
	if !over() {
		return
	}
	res.Finish = provider.FinishLength
	for len(res.ToolCalls) > 0 && over() {
		res.ToolCalls = res.ToolCalls[:len(res.ToolCalls)-1]
	}
	if len(res.ToolCalls) == 0 {
		res.ToolCalls = nil
	}
	for over() {
		// Each token over the limit is at least one character.
		excess := int(chat.Tokens(res.Text) - req.MaxTokens)
		for range excess {
			_, size := utf8.DecodeLastRuneInString(res.Text)
			res.Text = res.Text[:len(res.Text)-size]
		}
	}
}

// digestOf identifies a request by the fields that the model reads: the SHA-256 of the
// list of model, messages and output limit as encoding/json writes it, with a newline.
func digestOf(req provider.Request) string {
	h := sha256.New()
	// Strings, integers and a hash have no errors.
	_ = json.NewEncoder(h).Encode([]any{req.Model, req.Messages, req.MaxTokens})
	return hex.EncodeToString(h.Sum(nil))
}

func quote(s string) string {
	s = strings.TrimSpace(s)
	if len(s) <= maxQuote {
		return s
	}
	cut := maxQuote
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// paired checks a history as OpenAI does: each tool call is answered by tool messages
// directly after it, and each tool message answers a tool call.
func paired(messages []provider.Message) error {
	open := map[string]bool{}
	for i, m := range messages {
		if m.Role == provider.ToolRole {
			if !open[m.ToolCallID] {
				return fmt.Errorf("messages[%d]: role 'tool' must answer a tool call of the message before, there is none with id %q", i, m.ToolCallID)
			}
			delete(open, m.ToolCallID)
			continue
		}
		if len(open) > 0 {
			return fmt.Errorf("messages[%d]: %d tool calls before it have no tool message", i, len(open))
		}
		for _, c := range m.ToolCalls {
			if c.ID == "" || open[c.ID] {
				return fmt.Errorf("messages[%d]: tool call id %q is empty or used twice", i, c.ID)
			}
			open[c.ID] = true
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("the last %d tool calls have no tool message", len(open))
	}
	return nil
}
