package simulated

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/jsontext"
	"github.com/anima-run/anima/services/inference-router/internal/model"
	"github.com/anima-run/anima/services/inference-router/internal/provider"
)

// maxQuote is the most bytes of a message that a template gets.
const maxQuote = 400

// moment holds the parts of a conversation that the next answer depends on.
type moment struct {
	user, system, toolResult string
	answered                 int // assistant messages after the last user message
}

func momentOf(messages []provider.Message) moment {
	var m moment
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
func (p *play) choose(req provider.Request) (chosen *step, sc scene, text string, err error) {
	m := momentOf(req.Messages)
	sc = scene{User: quote(m.user), ToolResult: quote(m.toolResult)}
	var steps []*step
	for _, r := range p.rules {
		if r.system != nil && !r.system.MatchString(m.system) {
			continue
		}
		sc.Match = []string{m.user}
		if r.lastUser != nil {
			if sc.Match = r.lastUser.FindStringSubmatch(m.user); sc.Match == nil {
				continue
			}
		}
		steps = playable(r.steps, req.Tools)
		break
	}
	if m.answered < len(steps) {
		return steps[m.answered], sc, "", nil
	}
	if len(steps) > 0 {
		if text, _, err = steps[len(steps)-1].render(sc); err != nil {
			return nil, sc, "", err
		}
	}
	if text == "" {
		text = "Done."
	}
	return nil, sc, text, nil
}

// playable removes the steps that only call tools that are not offered. All requests of a
// conversation offer the same tools, so the result is the same for each.
func playable(steps []*step, tools []provider.Tool) []*step {
	var out []*step
	for _, s := range steps {
		if len(s.calls) == 0 || slices.ContainsFunc(s.calls, func(c callTemplate) bool { return offered(tools, c.name) }) {
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
func (p *play) answer(req provider.Request, size int64, s *step, sc scene, text string) (provider.Response, error) {
	digest := digestOf(req)
	res := provider.Response{ID: "chatcmpl-" + digest[:24], Model: req.Model, Text: text, Finish: provider.FinishStop}
	if s != nil {
		var arguments []string
		var err error
		if res.Text, arguments, err = s.render(sc); err != nil {
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
		excess := int(model.Tokens(res.Text) - req.MaxTokens)
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
	longest := 0
	for _, m := range req.Messages {
		longest = max(longest, len(m.Content))
	}
	const around, escapes = 512, 8 // bytes for the fields around a text, and one byte in 8 for escapes
	out := append(make([]byte, 0, longest+longest/escapes+around), '[')
	out = append(jsontext.Append(out, req.Model), ',', '[')
	for i, m := range req.Messages {
		if i > 0 {
			out = append(out, ',')
		}
		out = jsontext.Append(append(out, `{"role":`...), m.Role)
		out = jsontext.Append(append(out, `,"content":`...), m.Content)
		for k, c := range m.ToolCalls {
			if k == 0 {
				out = append(out, `,"toolCalls":[`...)
			} else {
				out = append(out, ',')
			}
			out = jsontext.Append(append(out, `{"id":`...), c.ID)
			out = jsontext.Append(append(out, `,"name":`...), c.Name)
			out = append(jsontext.Append(append(out, `,"arguments":`...), c.Arguments), '}')
		}
		if len(m.ToolCalls) > 0 {
			out = append(out, ']')
		}
		if m.ToolCallID != "" {
			out = jsontext.Append(append(out, `,"toolCallId":`...), m.ToolCallID)
		}
		h.Write(append(out, '}'))
		out = out[:0]
	}
	out = strconv.AppendInt(append(out, ']', ','), req.MaxTokens, 10)
	h.Write(append(out, ']', '\n'))
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
