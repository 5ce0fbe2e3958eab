package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/anima-run/anima/pkg/api"
)

// Kind is the kind of a transaction.
type Kind string

// The kinds. KindExpire is a release by treasury after the expiry of a hold.
const (
	KindHold     Kind = "hold"
	KindSettle   Kind = "settle"
	KindRelease  Kind = "release"
	KindExpire   Kind = "expire"
	KindDeposit  Kind = "deposit"
	KindTransfer Kind = "transfer"
	KindPurchase Kind = "purchase" // of credits, paid in USDC
	KindReversal Kind = "reversal" // of another transaction, which the chain has undone
	KindLimits   Kind = "limits"   // a change of an agent's limits; it has no lines
)

// Hash is the SHA-256 of a transaction and, through it, of all earlier transactions. The
// zero value precedes the first transaction.
type Hash [sha256.Size]byte

// String returns the hash in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash parses the result of [Hash.String].
func ParseHash(s string) (Hash, error) {
	var h Hash
	if len(s) != hex.EncodedLen(len(h)) {
		return h, fmt.Errorf("hash %q is not %d hex digits", clip(s), hex.EncodedLen(len(h)))
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		return h, fmt.Errorf("hash %q: %w", clip(s), err)
	}
	return h, nil
}

// Line is one posting of a transaction.
type Line struct {
	Account string
	Amount  api.Micros // positive: credited to the account; negative: debited
	Balance api.Micros // of the account after the transaction
}

// Transaction moves amounts between accounts. Its lines sum to zero in each asset and
// have distinct accounts. It never changes after it is written.
type Transaction struct {
	Seq      int64 // 1, 2, 3 … without gaps
	ID       string
	Kind     Kind
	Agent    string // the agent on whose behalf it is made
	Lines    []Line
	Memo     string
	Turn     string
	Trace    string // trace id of the request, "" if it has none
	At       int64  // Unix microseconds
	Previous Hash
	Hash     Hash

	// Parent is the W3C traceparent of the request, for the announcement of the
	// transaction. It is neither stored nor hashed.
	Parent string
}

// Sum computes the hash of t: SHA-256 over the previous hash and each announced field,
// each written as its length in bytes, a colon and its text (numbers in decimal), in the
// order of the struct; the lines are written as their count and then the account and
// amount of each. A reader of the events can recompute it.
func (t *Transaction) Sum() Hash {
	b := make([]byte, 0, 512)
	b = append(b, t.Previous[:]...)
	text := func(s string) {
		b = strconv.AppendInt(b, int64(len(s)), 10)
		b = append(b, ':')
		b = append(b, s...)
	}
	number := func(n int64) { text(strconv.FormatInt(n, 10)) }
	number(t.Seq)
	text(t.ID)
	text(string(t.Kind))
	text(t.Agent)
	number(int64(len(t.Lines)))
	for _, l := range t.Lines {
		text(l.Account)
		number(int64(l.Amount))
	}
	text(t.Memo)
	text(t.Turn)
	text(t.Trace)
	number(t.At)
	return sha256.Sum256(b)
}

// Other returns the second agent whose accounts t changes, "" if there is none.
func (t *Transaction) Other() string {
	for _, l := range t.Lines {
		if owner := ownerOf(l.Account); owner != "" && owner != t.Agent {
			return owner
		}
	}
	return ""
}

// Received returns what an agent received by a deposit or a purchase, with what repaid its
// debt; 0 for other kinds.
func (t *Transaction) Received() (asset api.Asset, amount api.Micros) {
	if t.Kind != KindDeposit && t.Kind != KindPurchase {
		return asset, 0
	}
	for _, l := range t.Lines {
		if ownerOf(l.Account) == "" && debtorOf(l.Account) == "" {
			continue
		}
		if of := AssetOf(l.Account); l.Amount > 0 && (t.Kind == KindDeposit || of == api.Credits) {
			asset, amount = of, amount+l.Amount
		}
	}
	return asset, amount
}

// SumIn returns the sum of the lines in an asset. It is 0 unless the transaction is
// faulty.
func (t *Transaction) SumIn(asset api.Asset) (sum api.Micros) {
	for _, l := range t.Lines {
		if AssetOf(l.Account) == asset {
			sum += l.Amount // a few amounts of at most MaxMicros
		}
	}
	return sum
}

// balanced returns the fault of the lines, "" if there is none.
func (t *Transaction) balanced() string {
	if len(t.Lines) < 2 {
		return "it has fewer than two lines"
	}
	var credits, usdc api.Micros
	seen := make(map[string]bool, len(t.Lines))
	for _, l := range t.Lines {
		sum := &credits
		if AssetOf(l.Account) == api.USDC {
			sum = &usdc
		}
		var ok bool
		if *sum, ok = api.Add(*sum, l.Amount); !ok {
			return "its sum overflows"
		}
		if seen[l.Account] {
			return "it names " + l.Account + " twice"
		}
		seen[l.Account] = true
	}
	if credits != 0 {
		return fmt.Sprintf("its lines sum to %d, not zero", credits)
	}
	if usdc != 0 {
		return fmt.Sprintf("its lines sum to %d of USDC, not zero", usdc)
	}
	return ""
}

// traceID returns the trace id of a W3C traceparent, "" if it is malformed.
func traceID(parent string) string {
	if len(parent) != 55 {
		return ""
	}
	id := parent[3:35]
	for i := range len(id) {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		}
	}
	return id
}
