// Package simulated is a model that is not there: an [http.Handler] that speaks
// OpenAI's chat-completions protocol and answers from a script. With it the whole
// path from the loop to a provider is real without any key or network.
//
// Its answers depend on the request alone, so they are the same after a restart
// and when a call is made again. The one exception are scripted errors with a
// count, which are counted in memory. It is strict where real providers are:
// unpaired tool results, unknown models and prompts beyond the window are
// refused.
package simulated

import (
	"bytes"
	_ "embed" // the default script
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Script says what the model answers.
type Script struct {
	Model   string   `json:"model"`             // the id that it is called by
	Aliases []string `json:"aliases,omitempty"` // other ids that it answers to
	// Seed of the sizes in which streamed text arrives.
	Seed uint64 `json:"seed,omitempty"`
	// ContextWindow in tokens, prompt and output limit together; 0 is none.
	ContextWindow int64  `json:"context_window,omitempty"`
	Rules         []Rule `json:"rules,omitempty"` // the first that matches plays
	Default       Plot   `json:"default,omitzero"`
}

// Rule is a plot for requests of a kind.
type Rule struct {
	When When `json:"when"`
	Plot
}

// When matches a request by regular expressions (RE2); an empty one matches
// everything, but one of the two must be there.
type When struct {
	LastUser string `json:"last_user,omitempty"` // against the last user message
	System   string `json:"system,omitempty"`    // against all system messages, joined by newlines
}

// Plot is a conversation: one step for each answer to the same user message. The
// step is chosen by counting the assistant's messages after the last user
// message. After the last step the answer is that step's text, or "Done.".
//
// A step whose tools are not offered in the request is left out, so a plot also
// works for a caller without tools.
type Plot struct {
	Steps []Step `json:"steps,omitempty"`
}

// Step is one answer. Text and the strings inside arguments are text/template
// templates over .User (the last user message, cut), .ToolResult (the last tool
// result after it, cut) and .Match (what last_user matched: the whole, then its
// groups).
type Step struct {
	Text      string `json:"text,omitempty"`
	ToolCalls []Call `json:"tool_calls,omitempty"`
	DelayMS   int    `json:"delay_ms,omitempty"` // before the answer begins
	DeltaMS   int    `json:"delta_ms,omitempty"` // before each further piece of a stream
	Error     *Fault `json:"error,omitempty"`    // instead of the answer
}

// Call is a tool call. Arguments is a JSON object; none is {}.
type Call struct {
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// Fault is an error answer in OpenAI's form.
type Fault struct {
	Status     int    `json:"status"`
	RetryAfter int    `json:"retry_after,omitempty"` // seconds; 0 sends no header
	Code       string `json:"code,omitempty"`
	Message    string `json:"message,omitempty"`
	// Times that the step fails in this process, whoever asks, before it answers;
	// 0 is always.
	Times int `json:"times,omitempty"`
}

// Parse reads a script and checks it. It knows every field: one that is
// misspelt is an error.
func Parse(data []byte) (Script, error) {
	var s Script
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return Script{}, fmt.Errorf("read the script: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Script{}, errors.New("read the script: something follows its end")
	}
	if _, err := compile(s); err != nil {
		return Script{}, err
	}
	return s, nil
}

//go:embed default.json
var defaultScript []byte

// Default is the script of the demonstration. A message that asks to write or
// research makes the agent work through its tools; "forbidden" tries what policy
// denies; "sleep" sleeps; "tell 0x… something" sends a message; messages from
// peers and wakes are answered in a few words.
func Default() (Script, error) { return Parse(defaultScript) }
