package model

import (
	"cmp"
	"math"
	"math/bits"
)

// pricedTokens is the number of tokens that a price is for.
const pricedTokens = 1_000_000

// Tokens is the consumption of a call. Negative counts are taken as 0.
type Tokens struct {
	Input   int64 // the whole prompt
	Cached  int64 // of Input, read from the provider's cache
	Written int64 // of Input, written to the provider's cache
	Output  int64
	Reason  int64 // of Output, not part of the text
}

// Cost returns the cost of a call in micro-USD: the exact sum over all kinds of tokens,
// rounded up once (docs/reference/inference-router.md, Cost). It returns [math.MaxInt64],
// which no account can pay, if the price is unknown or the cost exceeds int64.
func (m Model) Cost(t Tokens) int64 {
	cached := min(count(t.Cached), count(t.Input))
	written := min(count(t.Written), count(t.Input)-cached)
	reason := min(count(t.Reason), count(t.Output))
	return m.sum([...][2]uint64{
		{count(t.Input) - cached - written, uint64(m.InputPrice)},
		{cached, uint64(cmp.Or(m.CachedPrice, m.InputPrice))},
		{written, uint64(cmp.Or(m.WritePrice, m.InputPrice))},
		{count(t.Output) - reason, uint64(m.OutputPrice)},
		{reason, uint64(cmp.Or(m.ReasonPrice, m.OutputPrice))},
	})
}

// Most returns the highest cost of a call with this many tokens: the amount of its hold.
// It assumes the dearest kind of token for the whole prompt and for the whole answer.
func (m Model) Most(input, output int64) int64 {
	m.InputPrice, m.OutputPrice = max(m.InputPrice, m.CachedPrice, m.WritePrice), m.dearestOutput()
	m.ReasonPrice = m.OutputPrice
	return m.Cost(Tokens{Input: input, Output: output})
}

// dearestOutput returns the highest price of a token of the answer.
func (m Model) dearestOutput() int64 { return max(m.OutputPrice, m.ReasonPrice) }

// sum returns the sum of the products of tokens and prices, for pricedTokens tokens.
func (m Model) sum(products [5][2]uint64) int64 {
	if !m.Known || min(m.InputPrice, m.OutputPrice, m.CachedPrice, m.WritePrice, m.ReasonPrice) < 0 {
		return math.MaxInt64
	}
	var hi, lo uint64
	for _, p := range products { // the sum fits 128 bits: the tokens of the prompt are below 2^63, as those of the answer
		h, l := bits.Mul64(p[0], p[1])
		var carry uint64
		lo, carry = bits.Add64(lo, l, 0)
		hi += h + carry
	}
	lo, carry := bits.Add64(lo, pricedTokens-1, 0)
	hi += carry
	if hi >= pricedTokens {
		return math.MaxInt64
	}
	cost, _ := bits.Div64(hi, lo, pricedTokens)
	if cost > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(cost)
}

func count(n int64) uint64 {
	if n < 0 {
		return 0
	}
	return uint64(n)
}
