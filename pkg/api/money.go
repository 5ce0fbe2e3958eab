package api

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Micros is an amount of micro-USD: 1,000,000 is one dollar, 10,000 one cent.
// It is what credits, prices and USDC atomic units are counted in (design §5).
// It crosses the wire as a JSON integer; amounts stay below [MaxMicros], so a
// reader that holds numbers as doubles loses nothing.
type Micros int64

// MaxMicros bounds an amount: 2^53 - 1, nine billion dollars.
const MaxMicros Micros = 1<<53 - 1

// Units.
const (
	Cent   Micros = 10_000
	Dollar Micros = 1_000_000
)

// String renders dollars with as many digits as the amount has, two at least:
// "$1.50", "-$0.000123".
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

// ParseMicros reads a non-negative dollar amount as people write it: "5", "$5",
// "0.25", "$0.000001". More than six decimals, signs and exponents are refused.
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

// Add returns a+b and whether the sum stays within [MaxMicros] on both sides.
func Add(a, b Micros) (Micros, bool) {
	if b > 0 && a > math.MaxInt64-b || b < 0 && a < math.MinInt64-b {
		return 0, false
	}
	s := a + b
	return s, s <= MaxMicros && s >= -MaxMicros
}

// Tier is how well an agent is funded. The zero value means unknown, which is
// never treated as poor (spec-core-7 W-7).
type Tier string

// The survival tiers of spec-money §2. Bounds in cents: high > 500,
// normal > 50, low_compute > 10, critical >= 0, dead < 0.
const (
	TierUnknown  Tier = ""
	TierHigh     Tier = "high"
	TierNormal   Tier = "normal"
	TierLow      Tier = "low_compute"
	TierCritical Tier = "critical"
	TierDead     Tier = "dead"
)

// TierOf is the one function from a balance to a tier.
func TierOf(balance Micros) Tier {
	switch {
	case balance > 500*Cent:
		return TierHigh
	case balance > 50*Cent:
		return TierNormal
	case balance > 10*Cent:
		return TierLow
	case balance >= 0:
		return TierCritical
	}
	return TierDead
}
