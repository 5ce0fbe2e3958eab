package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/api/catalog"
	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// Reference names the parts of a turn's prompt. With the texts that it names and the
// turns at its positions [Rebuild] makes the same prompt again; with the recorded state
// of the engine [Replay] executes the same turn again. It holds no text that is stored
// elsewhere.
type Reference struct {
	Hash    string  `json:"hash"`              // SHA-256 of the messages as JSON, hex; see Wire
	Wire    bool    `json:"wire,omitempty"`    // the JSON is that sent to the provider; false: that of [api.ChatMessage], by an older release
	Form    int     `json:"form,omitempty"`    // see [form]
	Layers  string  `json:"layers"`            // hash of the list of the layers
	Given   string  `json:"given,omitempty"`   // hash of the list of layers, memory and todo before they were cut; "": the prompt has them uncut
	Status  string  `json:"status"`            // the layer that differs in every turn
	Memory  string  `json:"memory,omitempty"`  // hash
	Todo    string  `json:"todo,omitempty"`    // hash
	Summary string  `json:"summary,omitempty"` // hash
	Hidden  int64   `json:"hidden,omitempty"`
	First   int64   `json:"first,omitempty"` // positions of the first and last turn in the prompt; 0: none
	Last    int64   `json:"last,omitempty"`
	Lines   int     `json:"lines,omitempty"`   // number of them that are shown as one line each
	Dropped []int64 `json:"dropped,omitempty"` // positions between First and Last that are left out
	Bare    int     `json:"bare,omitempty"`    // number of the turns shown in full that lack their results
	Asked   bool    `json:"asked,omitempty"`   // the run's input is placed before the turns
	Joined  bool    `json:"joined,omitempty"`  // what joined the run in turns that are shown as lines follows it; false in prompts of older releases
	Words   bool    `json:"words,omitempty"`   // the new input of the turn is placed after the turns
	Flush   bool    `json:"flush,omitempty"`
	Warning string  `json:"warning,omitempty"`
	Counted int64   `json:"counted"` // tokens, before correction by the provider's ratio
	Tokens  int64   `json:"tokens"`
	Window  int64   `json:"window"`
	Stage   int     `json:"stage,omitempty"`
	From    int64   `json:"from,omitempty"`    // window before it was reduced; 0: not reduced
	Hard    bool    `json:"hard,omitempty"`    // everything that can be left out was left out
	Refused bool    `json:"refused,omitempty"` // the provider refused the prompt with the conversation before the run; this is the prompt without it

	// State of the engine at the model call. Turns of older releases lack it.
	Agent    string         `json:"agent,omitempty"` // hash of the definition as JSON
	Kit      string         `json:"kit,omitempty"`   // hash of the tools that were offered
	Tier     api.Tier       `json:"tier,omitempty"`
	State    api.AgentState `json:"state,omitempty"`
	Counters api.Counters   `json:"counters,omitzero"`
	Notice   string         `json:"notice,omitempty"`
	Since    uint64         `json:"since,omitempty"`   // sequence of the journal's last entry before the turn
	Through  int64          `json:"through,omitempty"` // position of the summary at the start of the turn
}

// form is the version of the prompts that this release builds. Prompts of another form
// cannot be rebuilt: form 0 had its volatile layers in the system prompt.
const form = 1

// OfferedTool is a tool as it was offered to the model.
type OfferedTool struct {
	api.Tool

	Effect   catalog.Effect `json:"effect"`
	Mutating bool           `json:"mutating,omitempty"`
	Status   bool           `json:"status,omitempty"`
}

// keepParts stores the texts of a prompt that are not stored yet and returns the
// reference of the prompt.
func (e *Engine) keepParts(ctx context.Context, s *state, m *promptBuild) (*Reference, error) {
	p := m.prompt
	m.messages = Encode(p.Messages)
	r := &Reference{
		Wire: e.Recorded == nil || e.Recorded.Wire(), Form: form, Hidden: p.Hidden, Lines: len(p.Lines), Bare: p.Bare, Asked: p.Asked != "", Joined: p.Joined != "", Words: p.Words != "",
		Flush: p.Flush, Counted: p.Counted, Tokens: p.Tokens, Window: m.in.Window, Stage: int(m.stage), Warning: strings.Join(p.Warning, ", "),
		From: m.from, Hard: m.in.Hard, Refused: m.refused, Tier: s.thinksAs(), State: s.agent.State, Counters: s.counters, Notice: s.notice, Since: s.since, Through: m.through,
	}
	var err error
	if r.Hash, err = r.hash(p.Messages, m.messages); err != nil {
		return nil, err
	}
	texts := map[string]string{}
	add := func(text string) string {
		if text == "" {
			return ""
		}
		h := Hash(text)
		texts[h] = text
		return h
	}
	list := make([]layerRef, len(p.Layers))
	for i, l := range p.Layers {
		list[i] = layerRef{Name: l.Name, Last: l.Last}
		if l.Name == statusLayer {
			r.Status = l.Text
		} else {
			list[i].Hash = add(l.Text)
		}
	}
	encoded, err := api.Encode(list)
	if err != nil {
		return nil, err
	}
	r.Layers, r.Memory, r.Todo, r.Summary = add(string(encoded)), add(p.Memory), add(p.Todo), add(p.Summary)
	if !entire(m.in, p) {
		if encoded, err = api.Encode(given(m.in, add)); err != nil {
			return nil, err
		}
		r.Given = add(string(encoded))
	}
	agent, err := e.Context.memo.definition(s.agent)
	if err != nil {
		return nil, err
	}
	kit, err := e.Context.memo.toolSet(offeredTools(m.offered, s.tools))
	if err != nil {
		return nil, err
	}
	r.Agent, r.Kit = agent.hash, kit.hash
	texts[agent.hash], texts[kit.hash] = agent.text, kit.text
	if m.tools = kit.offered; len(m.in.Tools) != len(m.offered) { // a memory flush has fewer tools
		if m.tools, err = chat.EncodeTools(m.in.Tools); err != nil {
			return nil, err
		}
	}
	r.places(p)
	return r, e.Context.keepNew(ctx, texts)
}

// offeredTools adds the properties of the engine's tools to the offered tools.
func offeredTools(offered []api.Tool, tools map[string]Tool) []OfferedTool {
	out := make([]OfferedTool, len(offered))
	for i, t := range offered {
		known := tools[t.Name]
		out[i] = OfferedTool{t, known.Effect, known.Mutating, known.Status}
	}
	return out
}

// statusLayer is the layer whose text is in the reference itself.
const statusLayer = "status"

// layerRef is one layer in a list of layers. The status has no hash. In the list Given
// a layer also has the fields that decide how it is cut.
type layerRef struct {
	Name   string `json:"name"`
	Hash   string `json:"hash,omitempty"`
	Last   bool   `json:"last,omitempty"`
	Must   bool   `json:"must,omitempty"`
	Budget int64  `json:"budget,omitempty"`
}

// entire reports whether a prompt has all its inputs uncut. If not, the parts that were
// cut must be stored too, because they may have caused a flush or a compaction.
func entire(in prompt.Input, p prompt.Prompt) bool {
	if p.Memory != in.Memory.Text || p.Todo != in.Todo.Text {
		return false
	}
	shown := p.Layers
	for _, l := range in.Layers {
		if l.Text == "" {
			continue
		}
		if len(shown) == 0 || shown[0].Name != l.Name || shown[0].Text != l.Text {
			return false
		}
		shown = shown[1:]
	}
	return true
}

// given lists the layers before they were cut, followed by memory and todo.
func given(in prompt.Input, add func(string) string) []layerRef {
	all := append(in.Layers[:len(in.Layers):len(in.Layers)], in.Memory, in.Todo)
	list := make([]layerRef, len(all))
	for i, l := range all {
		list[i] = layerRef{Name: l.Name, Last: l.Last, Must: l.Must, Budget: l.Budget}
		if l.Name != statusLayer {
			list[i].Hash = add(l.Text)
		}
	}
	return list
}

// places records the positions of the turns in a prompt.
func (r *Reference) places(p prompt.Prompt) {
	next := int64(0)
	for _, turns := range [...][]prompt.Turn{p.Lines, p.Turns} {
		for i := range turns {
			at := turns[i].Position
			if r.First == 0 {
				r.First, next = at, at
			}
			for ; next < at; next++ {
				r.Dropped = append(r.Dropped, next)
			}
			r.Last, next = at, at+1
		}
	}
}

// maxKept limits the number of cached hashes of stored texts.
const maxKept = 4096

// keepNew stores the texts that this process has not stored before.
func (c *Context) keepNew(ctx context.Context, texts map[string]string) error {
	c.mu.Lock()
	for h := range texts {
		if c.kept[h] {
			delete(texts, h)
		}
	}
	c.mu.Unlock()
	if len(texts) == 0 {
		return nil
	}
	if err := c.Store.Keep(ctx, texts); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept == nil || len(c.kept) > maxKept {
		c.kept = map[string]bool{}
	}
	for h := range texts {
		c.kept[h] = true
	}
	return nil
}

// Hash returns the name under which a text is stored: its SHA-256 in hex.
func Hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// hash returns the hash of a prompt; encoded is the form that is sent to the router.
func (r *Reference) hash(messages []api.ChatMessage, encoded []byte) (string, error) {
	if !r.Wire {
		before, err := api.Encode(messages)
		if err != nil {
			return "", err
		}
		encoded = before
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:]), nil
}
