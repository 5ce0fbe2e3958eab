package x402

import (
	"strconv"

	"github.com/anima-run/anima/pkg/api"
)

// ParseAmount parses an amount in atomic units, which are micro-USD for a token with 6
// decimals: decimal digits without sign, point, exponent, prefix, space and leading
// zeros, at most [api.MaxMicros]. There is no second unit: an amount of dollars would be
// read as a millionth of it, and the reverse pays a million times too much.
func ParseAmount(s string) (api.Micros, error) {
	if s == "" || len(s) > 1 && s[0] == '0' {
		return 0, notAtomic(s)
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, notAtomic(s)
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || api.Micros(n) > api.MaxMicros {
		return 0, notAtomic(s)
	}
	return api.Micros(n), nil
}

func notAtomic(s string) error {
	if len(s) > 40 {
		s = s[:40]
	}
	return fault(BadPayload, "%q is not an amount in atomic units", s)
}

// FormatAmount is the reverse of [ParseAmount].
func FormatAmount(m api.Micros) string { return strconv.FormatInt(int64(m), 10) }
