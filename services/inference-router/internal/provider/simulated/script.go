package simulated

import (
	"bytes"
	_ "embed" // the default script
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Script holds the answers of the model.
type Script struct {
	Model   string   `json:"model"`             // its id
	Aliases []string `json:"aliases,omitempty"` // other ids that it accepts
	// Seed determines the sizes of the pieces of streamed text.
	Seed uint64 `json:"seed,omitempty"`
	// ContextWindow is in tokens, for prompt and output limit together; 0 is unlimited.
	ContextWindow int64  `json:"context_window,omitempty"`
	Rules         []Rule `json:"rules,omitempty"` // the first matching rule applies
	Default       Plot   `json:"default,omitzero"`
}

// Rule is a plot for the requests that match When.
type Rule struct {
	When When `json:"when"`
	Plot
}

// When matches a request by regular expressions (RE2). An empty expression matches each
// text; at least one of the two is required.
type When struct {
	LastUser string `json:"last_user,omitempty"` // against the last user message
	System   string `json:"system,omitempty"`    // against all system messages, joined by newlines
}

// Plot is a conversation: one step for each answer to the same user message. The number
// of assistant messages after the last user message selects the step. After the last step
// the answer is the text of that step, or "Done.".
//
// A step is skipped if it calls only tools that the request does not offer, so a plot
// also works for a caller without tools.
type Plot struct {
	Steps []Step `json:"steps,omitempty"`
}

// Step is one answer. Text and the strings inside arguments are text/template templates
// with the data .User (the last user message, truncated), .ToolResult (the last tool
// result after it, truncated) and .Match (the match of last_user and its groups).
type Step struct {
	Text      string `json:"text,omitempty"`
	ToolCalls []Call `json:"tool_calls,omitempty"`
	DelayMS   int    `json:"delay_ms,omitempty"` // delay before the answer, in milliseconds
	DeltaMS   int    `json:"delta_ms,omitempty"` // delay before each further piece of a stream, in milliseconds
	Error     *Fault `json:"error,omitempty"`    // instead of the answer
}

// Call is a tool call. Arguments is a JSON object; if missing, it is {}.
type Call struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// Fault is an error answer in OpenAI's format. It is an error of [Provider.Answer].
type Fault struct {
	Status     int    `json:"status"`
	RetryAfter int    `json:"retry_after,omitempty"` // seconds; 0 sends no header
	Code       string `json:"code,omitempty"`
	Message    string `json:"message,omitempty"`
	// Times is the number of failures of the step in this process, over all callers; 0
	// means that it fails always.
	Times int `json:"times,omitempty"`
}

// Error returns the message.
func (f *Fault) Error() string { return f.Message }

// Parse decodes and checks a script. An unknown field is an error.
func Parse(data []byte) (Script, error) {
	var s Script
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return Script{}, fmt.Errorf("read the script: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Script{}, errors.New("read the script: data after its end")
	}
	if _, err := compile(s); err != nil {
		return Script{}, err
	}
	return s, nil
}

//go:embed default.json
var defaultScript []byte

// Default returns the script of the demonstration. A message that asks to write or
// research makes the agent use its tools; "forbidden" makes a call that policy denies;
// "sleep" makes the agent sleep; "tell 0x… something" sends a message; messages from
// peers and wakes get a short answer.
func Default() (Script, error) { return Parse(defaultScript) }
