package model_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/anima-run/anima/services/inference-router/internal/model"
)

// TestReasoningPrice checks that answer tokens outside the text have their own price, and the
// output price without one, and that a model with such a price is not free.
func TestReasoningPrice(t *testing.T) {
	t.Parallel()
	m := model.Model{Known: true, InputPrice: 1_000_000, OutputPrice: 2_000_000, ReasonPrice: 5_000_000}
	for _, c := range []struct {
		tokens model.Tokens
		want   int64
	}{
		{model.Tokens{Output: 10}, 20},
		{model.Tokens{Output: 10, Reason: 4}, 6*2 + 4*5},
		{model.Tokens{Output: 10, Reason: 40}, 50}, // not more than the answer
		{model.Tokens{Output: 10, Reason: -1}, 20},
	} {
		if got := m.Cost(c.tokens); got != c.want {
			t.Errorf("%+v: got %d, want %d", c.tokens, got, c.want)
		}
	}
	m.ReasonPrice = 0
	if got := m.Cost(model.Tokens{Output: 10, Reason: 4}); got != 20 {
		t.Errorf("without a price of its own: got %d, want 20", got)
	}
	if (model.Model{Known: true, ReasonPrice: 1}).Free() {
		t.Error("a model with a price for reasoning is free")
	}
}

// TestHoldCoversEachCost checks that the hold of a call covers its cost, whatever kinds of
// tokens it used and whichever of them is dearest.
func TestHoldCoversEachCost(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		price, tokens := rapid.Int64Range(0, 100_000_000), rapid.Int64Range(0, 2_000_000)
		m := model.Model{
			Known: true, InputPrice: price.Draw(t, "input"), OutputPrice: price.Draw(t, "output"), CachedPrice: price.Draw(t, "cached"),
			WritePrice: price.Draw(t, "write"), ReasonPrice: price.Draw(t, "reasoning"),
		}
		used := model.Tokens{
			Input: tokens.Draw(t, "in"), Cached: tokens.Draw(t, "from the cache"), Written: tokens.Draw(t, "to the cache"), Output: tokens.Draw(t, "out"), Reason: tokens.Draw(t, "thought"),
		}
		if most, cost := m.Most(used.Input, used.Output), m.Cost(used); most < cost {
			t.Fatalf("hold %d, cost %d", most, cost)
		}
	})
}
