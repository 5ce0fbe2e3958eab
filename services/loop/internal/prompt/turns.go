package prompt

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// render makes the messages of a stored turn: its input, the model's text with its tool
// calls, and a result for each call. A turn without text has its calls and their results
// (docs/reference/context.md, turn without text). In a bare turn long results and
// arguments are shortened.
func render(t api.Turn, bare bool) []api.ChatMessage {
	var out []api.ChatMessage
	if t.Input != "" {
		out = append(out, api.ChatMessage{Role: "user", Content: defused(t.Input)})
	}
	if t.Thinking == "" && len(t.Calls) == 0 || t.Finish == api.FinishFlush {
		return out
	}
	m := api.ChatMessage{Role: "assistant", Content: said(t.Thinking)}
	var results []api.ChatMessage
	for _, c := range t.Calls {
		text, arguments := c.Result, string(c.Arguments)
		if c.Error != "" {
			text = strings.TrimSpace(c.Error + "\n" + c.Result)
		}
		if bare {
			text, arguments = reference(c, text), shortened(c.Arguments)
		}
		id := CallID(t, c)
		m.ToolCalls = append(m.ToolCalls, api.ToolCall{ID: id, Name: c.Tool, Arguments: arguments})
		results = append(results, api.ChatMessage{Role: "tool", ToolCallID: id, Content: defused(text)})
	}
	return append(append(out, m), results...)
}

// maxSaid is the largest size of one answer in a prompt, in bytes. Answers within any
// model's output limit are smaller. A larger one, of a provider that ignores the limit,
// would fill the window of all later prompts.
const maxSaid = 64 << 10

// said returns an answer as it is shown to the model. The transcript has all of it.
func said(text string) string {
	if len(text) <= maxSaid {
		return text
	}
	kept := sanitize.Bytes(text, maxSaid)
	return fmt.Sprintf("%s… [%d bytes of this answer are left out here]", kept, len(text)-len(kept))
}

// CallID returns our own id of a tool call, because providers that number the calls of
// each answer from call_0 repeat their ids (docs/reference/context.md, repeated call id).
// It has at most 40 letters, digits and underscores, which every provider accepts.
func CallID(t api.Turn, c api.CallState) string {
	const prefix = "call_"
	var text [64]byte
	sum := sha256.Sum256(strconv.AppendInt(append(append(text[:0], t.ID...), '.'), int64(c.Index), 10))
	var id [len(prefix) + 16]byte
	copy(id[:], prefix)
	hex.Encode(id[len(prefix):], sum[:8])
	return string(id[:])
}

// reference returns the text in place of an old result, or the result if that is shorter.
func reference(c api.CallState, text string) string {
	short := fmt.Sprintf("[%s; the result of %d bytes is left out here, call again if you need it]", c.Outcome, len(text))
	if len(text) <= len(short) {
		return text
	}
	return short
}

// maxArgument is the length of an argument in an old call, in bytes.
const maxArgument = 200

// shortened returns arguments with long strings cut.
func shortened(arguments json.RawMessage) string {
	var fields map[string]any
	if len(arguments) <= maxArgument || json.Unmarshal(arguments, &fields) != nil {
		return string(arguments)
	}
	for k, v := range fields {
		if s, ok := v.(string); ok && len(s) > maxArgument {
			fields[k] = fmt.Sprintf("%s… (%d bytes)", sanitize.Bytes(s, maxArgument), len(s))
		}
	}
	short, err := api.Encode(fields)
	if err != nil || len(short) > len(arguments) {
		return string(arguments)
	}
	return string(short)
}

// maxLine is the length of a turn's line in characters (docs/reference/context.md,
// Rendered turns).
const maxLine = 96

// line describes an old turn in one line: time, principal, first words and tools.
func line(t api.Turn) string {
	who, words := string(t.By.Kind), cmp.Or(t.Thinking, t.Input)
	if t.Input == "" || who == "" {
		who = "self"
	}
	head := time.UnixMicro(t.StartedAt).UTC().Format("01-02 15:04") + " " + who + ": "
	tools := ""
	for i, c := range t.Calls {
		name := flat(c.Tool, 24) + " ok"
		if c.Outcome != api.OutcomeOK {
			name = flat(c.Tool, 24) + " FAILED"
		}
		if i > 0 && len(tools)+len(name) > 40 {
			tools += fmt.Sprintf(" and %d more", len(t.Calls)-i)
			break
		}
		if i > 0 {
			tools += ", "
		}
		tools += name
	}
	if tools != "" {
		tools = " [" + tools + "]"
	}
	room := maxLine - utf8.RuneCountInString(head) - utf8.RuneCountInString(tools)
	return sanitize.First(head+flat(words, max(room, 0))+tools, maxLine)
}

// noticeMark begins the input of a turn that only has a notice of the engine.
const noticeMark = "[system] "

// Joined returns the inputs that joined a run in the turns of a list, which shows each
// turn as one line. The model must follow them in the whole run, as the run's input.
func Joined(lines []Turn, run string) string {
	var inputs []string
	for i := range lines {
		if t := &lines[i]; t.Run == run && t.Number > 1 && t.Input != "" && !strings.HasPrefix(t.Input, noticeMark) {
			inputs = append(inputs, t.Input)
		}
	}
	return strings.Join(inputs, "\n\n")
}

// statusOnly reports whether a turn without a request only read the agent's own state.
func statusOnly(t *api.Turn, status func(string) bool) bool {
	asked := t.Input != "" && t.By.Kind != api.HeartbeatKind && t.By.Kind != api.Self
	return !asked && len(t.Calls) > 0 && !slices.ContainsFunc(t.Calls, func(c api.CallState) bool { return !status(c.Tool) })
}

// repeated returns the tools that the last five turns called three times or more
// (docs/reference/context.md, Repetition warning), none if there are fewer than three
// turns.
func repeated(turns []Turn) []string {
	const window, few, many = 5, 3, 3
	if len(turns) < few {
		return nil
	}
	counts := map[string]int{}
	var order []string
	for _, t := range turns[max(0, len(turns)-window):] {
		for i := range t.Calls {
			name := t.Calls[i].Tool
			if counts[name]++; counts[name] == many {
				order = append(order, flat(name, 40))
			}
		}
	}
	return order
}

// digest describes a turn for the model that summarises it.
func digest(t api.Turn) string {
	var b strings.Builder
	if t.Input != "" {
		fmt.Fprintf(&b, "%s asked: %s\n", t.By.Kind, flat(t.Input, 500))
	}
	if t.Thinking != "" && t.Finish != api.FinishFlush {
		fmt.Fprintf(&b, "agent said: %s\n", flat(t.Thinking, 600))
	}
	for _, c := range t.Calls {
		result := c.Result
		if c.Error != "" {
			result = c.Error + " " + c.Result
		}
		fmt.Fprintf(&b, "agent called %s %s: %s, %s\n", flat(c.Tool, 40), flat(string(c.Arguments), 160), c.Outcome, flat(result, 240))
	}
	return b.String()
}
