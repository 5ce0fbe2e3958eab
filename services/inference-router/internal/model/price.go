package model

import (
	"math"
	"math/bits"
)

// pricedTokens is the number of tokens that a price is for.
const pricedTokens = 1_000_000

// Cost returns the cost of a call in micro-USD: the exact sum for input and output
// tokens, rounded up once (docs/reference/inference-router.md, Cost). Negative counts are
// taken as 0. It returns [math.MaxInt64], which no account can pay, if the price is
// unknown or the cost exceeds int64.
//
// Cached prompt tokens are part of in and have the full price: the registry has no
// discount for them, and a hold must not be too small.
func (m Model) Cost(in, out int64) int64 {
	if !m.Known || m.InputPrice < 0 || m.OutputPrice < 0 {
		return math.MaxInt64
	}
	// The sum fits 128 bits: each product is below 2^126.
	inHi, inLo := bits.Mul64(count(in), uint64(m.InputPrice))
	outHi, outLo := bits.Mul64(count(out), uint64(m.OutputPrice))
	lo, carry := bits.Add64(inLo, outLo, 0)
	hi, _ := bits.Add64(inHi, outHi, carry)
	lo, carry = bits.Add64(lo, pricedTokens-1, 0)
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
