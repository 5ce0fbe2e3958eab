package model_test

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/anima-run/anima/pkg/api/chat"

	"github.com/anima-run/anima/services/inference-router/internal/model"
)

func baseline(t *testing.T) *model.Registry {
	t.Helper()
	r, err := model.NewRegistry(model.Baseline()...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func get(t *testing.T, r *model.Registry, id string) model.Model {
	t.Helper()
	m, ok := r.Get(id)
	if !ok {
		t.Fatalf("model %s is not registered", id)
	}
	return m
}

// TestCost checks the vectors V-15 (docs/reference/inference-router.md, Test vectors) in
// micro-USD: costs are not rounded to whole cents. The row of gpt-4.1 with 2,000 tokens is
// V-26: 0.4 cents a side.
func TestCost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		id            string
		in, out, want int64
	}{
		{"gpt-5.2", 0, 0, 0},
		{"gpt-5.2", 1, 0, 2},
		{"gpt-5.2", 100, 50, 875},
		{"gpt-5.2", 1000, 500, 8_750},
		{"gpt-5.2", 10_000, 1000, 31_500},
		{"gpt-5.2", 100_000, 8192, 289_688},
		{"gpt-5-mini", 10, 1, 12},
		{"gpt-5-mini", 1000, 500, 2_400},
		{"gpt-5-mini", 20_000, 2048, 22_554},
		{"gpt-4.1", 2000, 500, 8_000},
		{"gpt-4.1", -1, -1, 0},
	} {
		if got := get(t, baseline(t), c.id).Cost(model.Tokens{Input: c.in, Output: c.out}); got != c.want {
			t.Errorf("%s: %d in, %d out: got %d, want %d", c.id, c.in, c.out, got, c.want)
		}
	}
}

func TestCostIsTheExactSumRoundedUpOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.OneOf(rapid.Int64Range(0, 1<<20), rapid.Int64Range(0, math.MaxInt64))
		m := model.Model{Known: true, InputPrice: amount.Draw(t, "input price"), OutputPrice: amount.Draw(t, "output price")}
		in, out := amount.Draw(t, "in"), amount.Draw(t, "out")

		sum := new(big.Int).Mul(big.NewInt(in), big.NewInt(m.InputPrice))
		sum.Add(sum, new(big.Int).Mul(big.NewInt(out), big.NewInt(m.OutputPrice)))
		want, rest := sum.QuoRem(sum, big.NewInt(1_000_000), new(big.Int))
		if rest.Sign() > 0 {
			want.Add(want, big.NewInt(1))
		}
		if !want.IsInt64() {
			want.SetInt64(math.MaxInt64)
		}
		if got := m.Cost(model.Tokens{Input: in, Output: out}); got != want.Int64() {
			t.Fatalf("got %d, want %s", got, want)
		}
	})
}

func TestUnknownPriceIsNotFree(t *testing.T) {
	t.Parallel()
	m := model.Model{ID: "new", Provider: "openai"}
	if m.Free() || m.Unusable() == "" || m.Cost(model.Tokens{Input: 1, Output: 1}) != math.MaxInt64 {
		t.Errorf("got free %v, unusable %q, cost %d; want not free, a reason, the largest cost", m.Free(), m.Unusable(), m.Cost(model.Tokens{Input: 1, Output: 1}))
	}
	m.Known = true
	if !m.Free() || m.Unusable() != "" || m.Cost(model.Tokens{Input: 1, Output: 1}) != 0 {
		t.Errorf("declared free: got free %v, unusable %q, cost %d", m.Free(), m.Unusable(), m.Cost(model.Tokens{Input: 1, Output: 1}))
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"": 0, "a": 1, "abcd": 1, "abcde": 2, "hello world": 3, // V-18
		"né": 2, "日本語": 5, "\xff": 1,
	} {
		if got := chat.Tokens(text); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}

// TestTokensOfPartsCoverTheWhole checks that splitting a text does not lower the
// estimate, because a prompt is counted by parts.
func TestTokensOfPartsCoverTheWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.String().Draw(t, "a"), rapid.String().Draw(t, "b")
		if parts, whole := chat.Tokens(a)+chat.Tokens(b), chat.Tokens(a+b); parts < whole {
			t.Fatalf("parts %d, whole %d", parts, whole)
		}
	})
}

func BenchmarkCost(b *testing.B) {
	m := model.Baseline()[0]
	for b.Loop() {
		m.Cost(model.Tokens{Input: 100_000, Cached: 50_000, Output: 8192})
	}
}

// TestCachedCost checks the prices of tokens that are read from and written to a cache,
// and that no call can cost more than its hold.
func TestCachedCost(t *testing.T) {
	t.Parallel()
	m := model.Model{Known: true, InputPrice: 1_000_000, OutputPrice: 5_000_000, CachedPrice: 100_000, WritePrice: 1_250_000}
	for _, c := range []struct {
		tokens model.Tokens
		want   int64
	}{
		{model.Tokens{Input: 1000, Output: 100}, 1500},
		{model.Tokens{Input: 1000, Cached: 1000}, 100},
		{model.Tokens{Input: 1000, Written: 1000}, 1250},
		{model.Tokens{Input: 1000, Cached: 600, Written: 300, Output: 10}, 60 + 375 + 100 + 50},
		{model.Tokens{Input: 1000, Cached: 5000, Written: 5000}, 100}, // more than the prompt has
		{model.Tokens{Input: 1000, Cached: -1, Written: -1}, 1000},
		{model.Tokens{Input: 1, Cached: 1}, 1}, // rounded up once
	} {
		if got := m.Cost(c.tokens); got != c.want {
			t.Errorf("%+v: got %d, want %d", c.tokens, got, c.want)
		}
		if most := m.Most(c.tokens.Input, c.tokens.Output); most < m.Cost(c.tokens) {
			t.Errorf("%+v costs more than the hold of %d", c.tokens, most)
		}
	}
	m.CachedPrice, m.WritePrice = 0, 0
	if got := m.Cost(model.Tokens{Input: 1000, Cached: 500, Written: 500}); got != 1000 {
		t.Errorf("without prices for the cache: got %d, want the input price, 1000", got)
	}
	m.CachedPrice = -1
	if got := m.Cost(model.Tokens{Input: 1}); got != math.MaxInt64 {
		t.Errorf("a negative price: got %d", got)
	}
}
