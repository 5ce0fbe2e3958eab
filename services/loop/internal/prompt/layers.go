package prompt

// Layer is a part of the prompt besides the conversation.
type Layer struct {
	Name   string
	Text   string // "": left out
	Budget int64  // largest size in tokens; the rest is cut. 0: [layerBudget]
	// Must reports that the layer is never left out or made smaller in a small window.
	Must bool
	// Last reports that the layer changes often. It is rendered after the conversation.
	Last bool
}

// Budgets in tokens.
const (
	layerBudget = 1_000
	// fullLayers is the capacity from which on every layer has its whole budget. In a
	// smaller window the budgets of optional layers are proportional to the capacity.
	fullLayers = 50_000
)

// notesLayer is the layer with MEMORY.md. A memory flush replaces the file as a whole, and
// what its prompt does not contain would be lost.
const notesLayer = "memory"

// layers cuts each layer to its budget, except the file that a memory flush replaces.
func layers(c Counter, in Input, capacity int64) []Text {
	out := make([]Text, 0, len(in.Layers))
	part := min(1, float64(capacity)/fullLayers)
	for _, l := range in.Layers {
		if in.Hard && !l.Must {
			continue
		}
		scale := part
		if l.Must {
			scale = 1
		}
		text := l.Text
		if !in.Flushing || l.Name != notesLayer {
			text = cutLayer(c, l, scale)
		}
		if text != "" {
			out = append(out, Text{l.Name, text, l.Last})
		}
	}
	return out
}

func cutLayer(c Counter, l Layer, scale float64) string {
	budget := l.Budget
	if budget == 0 {
		budget = layerBudget
	}
	return within(c, l.Text, int64(float64(budget)*scale))
}

// MemoryBudget returns the number of tokens for recalled memories. left is what the
// system prompt leaves, in tokens, and utilisation is in hundredths of a per cent. The
// budget is 15 % of left below 5,000, 5 % above 7,000 and 10 % otherwise, within 2,000 to
// 20,000, and at most a quarter of left (docs/reference/context.md, Memory budget).
func MemoryBudget(left, utilisation int64) int64 {
	percent := int64(10)
	switch {
	case utilisation > 7000:
		percent = 5
	case utilisation < 5000:
		percent = 15
	}
	return min(max(2_000, min(20_000, left*percent/100)), left/4)
}
