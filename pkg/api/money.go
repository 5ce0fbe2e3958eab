package api

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Micros is an amount in micro-USD: 1,000,000 is one dollar, 10,000 one cent. Credits,
// prices and atomic units of USDC are counted in it (docs/reference/platform.md, Money).
// It is encoded as a JSON integer. Its absolute value is at most [MaxMicros], so a reader
// that stores numbers as doubles loses no precision.
type Micros int64

// MaxMicros is the largest amount: 2^53 - 1 micro-USD, nine billion dollars.
const MaxMicros Micros = 1<<53 - 1

// Cent and Dollar are the units of larger amounts.
const (
	Cent   Micros = 10_000
	Dollar Micros = 1_000_000
)

// String formats m in dollars with as many decimals as it has, at least two: "$1.50",
// "-$0.000123".
func (m Micros) String() string {
	sign, u := "", uint64(m)
	if m < 0 {
		sign, u = "-", -uint64(m)
	}
	frac := strings.TrimRight(fmt.Sprintf("%06d", u%1_000_000), "0")
	for len(frac) < 2 {
		frac += "0"
	}
	return sign + "$" + strconv.FormatUint(u/1_000_000, 10) + "." + frac
}

// ParseMicros parses a non-negative amount in dollars: "5", "$5", "0.25", "$0.000001".
// It refuses signs, exponents, more than six decimals and amounts above [MaxMicros]
// with [Invalid].
func ParseMicros(s string) (Micros, error) {
	fault := Errorf(Invalid, "%q is not an amount of dollars", s)
	fault.Next = `write it like 5, 0.25 or $0.000001`
	whole, frac, dotted := strings.Cut(strings.TrimPrefix(strings.TrimSpace(s), "$"), ".")
	if whole == "" || dotted && frac == "" || len(frac) > 6 || len(whole) > 10 {
		return 0, fault
	}
	digits := whole + frac + strings.Repeat("0", 6-len(frac))
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, fault
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || Micros(n) > MaxMicros {
		return 0, fault
	}
	return Micros(n), nil
}

// Add returns a+b and whether the sum is within -[MaxMicros] and [MaxMicros]. On an
// overflow of int64 the sum is 0.
func Add(a, b Micros) (Micros, bool) {
	if b > 0 && a > math.MaxInt64-b || b < 0 && a < math.MinInt64-b {
		return 0, false
	}
	s := a + b
	return s, s <= MaxMicros && s >= -MaxMicros
}

// Tier is the survival tier of an agent, by its balance. The zero value means that the
// balance is unknown. It is never treated as a low balance (docs/reference/platform.md,
// unknown balance).
type Tier string

// The survival tiers (docs/reference/platform.md, Survival tiers). Bounds in cents:
// high > 500, normal > 50, low_compute > 10, critical >= 0, dead < 0.
const (
	TierUnknown  Tier = ""
	TierHigh     Tier = "high"
	TierNormal   Tier = "normal"
	TierLow      Tier = "low_compute"
	TierCritical Tier = "critical"
	TierDead     Tier = "dead"
)

// MaxLow is the largest balance of the tier low_compute.
const MaxLow = 50 * Cent

// TierOf returns the tier of a balance. No other code maps a balance to a tier.
func TierOf(balance Micros) Tier {
	switch {
	case balance > 500*Cent:
		return TierHigh
	case balance > MaxLow:
		return TierNormal
	case balance > 10*Cent:
		return TierLow
	case balance >= 0:
		return TierCritical
	}
	return TierDead
}
