package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// Recording holds the inputs of a turn from outside the engine and the results of the
type Recording struct {
	Run         api.Run
	Turn        api.Turn
	Reference   Reference // zero: no model was called
	Input       Input     // of the run; By as it was before the turn
	End         *End      // of the run, if this turn was the last; nil: the run continued
	Cost        api.Micros
	Before      Conversation // before the turn's model call
	Compactions []Compaction // made for this turn, in order
	After       *Reference   // of the session's next turn; nil: none is stored
	Steps       []Step       // journal entries of this turn, in order
}

// Rebuild rebuilds the prompt of a persisted turn from the store. asked is the run's
// input, words the new input of the turn. It fails if the result is not byte for byte
// the prompt that the model received. Errors: NotFound, Internal.
func Rebuild(ctx context.Context, store ContextStore, turn, asked, words string) ([]api.ChatMessage, Reference, error) {
	p, r, err := PartsOf(ctx, store, turn, asked, words)
	if err != nil {
		return nil, r, err
	}
	messages := prompt.Render(p)
	sum, err := r.hash(messages, Encode(messages))
	if err == nil && sum != r.Hash {
		err = fmt.Errorf("prompt of %s: the rebuilt prompt differs from the recorded one", turn)
	}
	return messages, r, err
}

// PartsOf returns the parts of a persisted turn's prompt.
func PartsOf(ctx context.Context, store ContextStore, turn, asked, words string) (prompt.Parts, Reference, error) {
	r, turns, err := store.Prompt(ctx, turn)
	if err == nil && r.Form != form {
		err = olderForm(turn)
	}
	if err != nil {
		return prompt.Parts{}, r, err
	}
	b := blobs{ctx: ctx, store: store}
	p := prompt.Parts{
		Layers: b.layers(r), Memory: b.text(r.Memory), Todo: b.text(r.Todo), Summary: b.text(r.Summary), Hidden: r.Hidden, Bare: r.Bare, Flush: r.Flush,
	}
	if b.failed != nil {
		return p, r, fmt.Errorf("prompt of %s: %w", turn, b.failed)
	}
	dropped := map[int64]bool{}
	for _, at := range r.Dropped {
		dropped[at] = true
	}
	for _, t := range turns {
		if dropped[t.Position] {
			continue
		}
		if len(p.Lines) < r.Lines {
			p.Lines = append(p.Lines, t)
		} else {
			p.Turns = append(p.Turns, t)
		}
	}
	if r.Asked {
		p.Asked = asked
	}
	if r.Joined {
		p.Joined = prompt.Joined(p.Lines, runOf(turn))
	}
	if r.Words {
		p.Words = words
	}
	if r.Warning != "" {
		p.Warning = strings.Split(r.Warning, ", ")
	}
	return p, r, nil
}

// blobs reads the texts that a reference names. The caller checks failed after the last
// read.
type blobs struct {
	ctx    context.Context //nolint:containedctx // used while one reference is read
	store  ContextStore
	failed error
}

func (b *blobs) text(hash string) string {
	if hash == "" || b.failed != nil {
		return ""
	}
	var s string
	s, b.failed = b.store.Text(b.ctx, hash)
	return s
}

func (b *blobs) decode(hash string, into any) {
	if encoded := b.text(hash); b.failed == nil && encoded != "" {
		b.failed = json.Unmarshal([]byte(encoded), into)
	}
}

// layers returns the layers as they were in a prompt.
func (b *blobs) layers(r Reference) []prompt.Text {
	var out []prompt.Text
	for _, l := range b.list(r, r.Layers) {
		out = append(out, prompt.Text{Name: l.Name, Text: l.Text, Last: l.Last})
	}
	return out
}

// list reads a list of layers.
func (b *blobs) list(r Reference, hash string) []prompt.Layer {
	var list []layerRef
	b.decode(hash, &list)
	out := make([]prompt.Layer, len(list))
	for i, l := range list {
		out[i] = prompt.Layer{Name: l.Name, Text: b.text(l.Hash), Last: l.Last, Must: l.Must, Budget: l.Budget}
		if l.Name == statusLayer {
			out[i].Text = r.Status
		}
	}
	return out
}

// whole is a budget that does not cut a layer.
const whole = 1 << 40

// given returns the layers, the memory and the todo before they were cut.
func (b *blobs) given(r Reference) (layers []prompt.Layer, memory, todo prompt.Layer) {
	if all := b.list(r, r.Given); len(all) >= 2 {
		n := len(all) - 2
		return all[:n], all[n], all[n+1]
	}
	// The layers were not cut, so they must not be cut now.
	for _, l := range b.layers(r) {
		layers = append(layers, prompt.Layer{Name: l.Name, Text: l.Text, Last: l.Last, Must: true, Budget: whole})
	}
	return layers, prompt.Layer{Name: "memory", Text: b.text(r.Memory), Budget: whole}, prompt.Layer{Name: "todo", Text: b.text(r.Todo), Budget: whole}
}

// Surroundings are the parts of a recorded prompt that come from outside the engine,
// before they were cut.
type Surroundings struct {
	Agent        Agent
	Tools        []OfferedTool
	Layers       []prompt.Layer
	Memory, Todo prompt.Layer
}

// Surroundings reads them from the store, for a turn. Errors: NotFound for a turn that
// was recorded with another form of prompts.
func (r Reference) Surroundings(ctx context.Context, store ContextStore, turn string) (Surroundings, error) {
	var s Surroundings
	if r.Form != form {
		return s, olderForm(turn)
	}
	b := blobs{ctx: ctx, store: store}
	b.decode(r.Agent, &s.Agent)
	b.decode(r.Kit, &s.Tools)
	s.Layers, s.Memory, s.Todo = b.given(r)
	if b.failed != nil {
		return s, fmt.Errorf("recording of %s: %w", turn, b.failed)
	}
	s.Agent.State = r.State
	return s, nil
}

// olderForm returns the error for a turn that was recorded with another form.
func olderForm(turn string) error {
	return &api.Error{
		Code: api.NotFound, Message: "turn " + turn + " was recorded by a release whose prompts had another form",
		Next: "replay and fork it with that release; later turns of its session can be replayed with this one",
	}
}
