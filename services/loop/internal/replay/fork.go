package replay

import (
	"context"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/prompt"
)

// Fork holds the prompt of a recorded turn, for another model call with changes.
type Fork struct {
	Agent    engine.Agent
	Answer   api.Completion // the recorded answer
	Messages []api.ChatMessage
	Tools    []api.Tool
}

// NewFork rebuilds the prompt of a recorded turn, with another genesis prompt if
// genesis is not empty. Errors: as [Replay].
func NewFork(ctx context.Context, texts engine.ContextStore, rec engine.Recording, genesis string) (Fork, error) {
	p, err := newReplayer(ctx, texts, rec, nil)
	if err != nil {
		return Fork{}, err
	}
	f := Fork{Agent: p.given.Agent, Answer: p.completion.Answer}
	for _, t := range p.given.Tools {
		if !rec.Reference.Flush || t.Name == engine.NotesTool {
			f.Tools = append(f.Tools, t.Tool)
		}
	}
	if genesis == "" {
		f.Messages, _, err = engine.Rebuild(ctx, texts, rec.Turn.ID, rec.Input.Text, rec.Turn.Input)
		return f, err
	}
	parts, _, err := engine.PartsOf(ctx, texts, rec.Turn.ID, rec.Input.Text, rec.Turn.Input)
	if err != nil {
		return f, err
	}
	first, more := prompt.Genesis(genesis)
	var layers []prompt.Text
	for _, l := range parts.Layers {
		switch l.Name {
		case "genesis", "definition": // the layer definition holds the rest of the genesis prompt
		case "identity":
			layers = append(layers, l)
			if first != "" {
				layers = append(layers, prompt.Text{Name: "genesis", Text: first})
			}
			if more != "" {
				layers = append(layers, prompt.Text{Name: "definition", Text: more})
			}
		default:
			layers = append(layers, l)
		}
	}
	parts.Layers = layers
	f.Messages = prompt.Render(parts)
	return f, nil
}
