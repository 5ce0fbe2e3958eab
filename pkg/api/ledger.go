package api

// Asset is what an account of the ledger holds. It follows from the name of the account:
// those of USDC begin with "usdc" (docs/reference/treasury.md, Accounts). Amounts of both
// assets are [Micros].
type Asset string

// The assets. The zero value means credits.
const (
	Credits Asset = ""
	USDC    Asset = "usdc" // on chain, with 6 decimals
)
