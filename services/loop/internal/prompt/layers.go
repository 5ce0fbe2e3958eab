package prompt

// Layer is one part of what an agent is told beside the conversation.
type Layer struct {
	Name   string
	Text   string // "" leaves it out
	Budget int64  // tokens; what is over is cut. 0: [layerBudget]
	// Must is a layer that is never left out, nor made smaller in a small window.
	Must bool
	// Last is a layer that changes often: it stands behind the conversation.
	Last bool
}

// Budgets in tokens.
const (
	layerBudget = 1_000
	// fullLayers is the capacity from which on every layer has its whole budget;
	// below, what need not be there has its share.
	fullLayers = 50_000
)

// layers cuts each layer to its budget.
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
		if text := cutLayer(c, l, scale); text != "" {
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

// MemoryBudget is how many tokens recalled memories may take of those that the
// system prompt leaves, by utilisation in hundredths of a percent: 15 % below half,
// 5 % above 70 %, else 10 %; 2,000 to 20,000 (V-23), and never more than a quarter
// of what is left.
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
