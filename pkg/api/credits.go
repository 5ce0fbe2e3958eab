package api

import "slices"

// TopupUSD returns the amounts of USDC, in dollars, for which credits are sold.
func TopupUSD() []int64 { return []int64{5, 25, 100, 500, 1000, 2500} }

// IsTopup reports whether credits are sold for an amount of dollars.
func IsTopup(usd int64) bool { return slices.Contains(TopupUSD(), usd) }
