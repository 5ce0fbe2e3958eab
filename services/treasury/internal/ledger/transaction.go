package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"

	"github.com/anima-run/anima/pkg/api"
)

// Kind says what a transaction did.
type Kind string

// The kinds. Expire is a release that the treasury did by itself.
const (
	KindHold     Kind = "hold"
	KindSettle   Kind = "settle"
	KindRelease  Kind = "release"
	KindExpire   Kind = "expire"
	KindDeposit  Kind = "deposit"
	KindTransfer Kind = "transfer"
)

// Hash is the SHA-256 of a transaction and, through it, of all before it. The
// zero value is what the first transaction follows.
type Hash [sha256.Size]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// ParseHash reads what [Hash.String] wrote.
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

// Line is one side of a transaction.
type Line struct {
	Account string
	Amount  api.Micros // what the account gains; negative: loses
	Balance api.Micros // of the account, afterwards
}

// Transaction moves money between accounts. Its lines sum to zero, name each
// account once, and never change after they are written.
type Transaction struct {
	Seq      int64 // 1, 2, 3 … without a gap
	ID       string
	Kind     Kind
	Agent    string // on whose behalf
	Lines    []Line
	Memo     string
	Turn     string
	Trace    string // trace id of the request, "" without one
	At       int64  // Unix microseconds
	Previous Hash
	Hash     Hash

	// Parent is the W3C traceparent of the request, for whoever announces the
	// transaction. It is neither stored nor hashed.
	Parent string
}

// Sum is the hash that t must have: SHA-256 over the hash before it and every
// field that is announced, each written as its length in bytes, a colon and its
// text (numbers in decimal), in the order of the struct; the lines are their
// count and then account and amount of each. A reader of the events can
// recompute it.
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

// Other is the second agent whose money t moves, "" without one.
func (t *Transaction) Other() string {
	for _, l := range t.Lines {
		if owner := ownerOf(l.Account); owner != "" && owner != t.Agent {
			return owner
		}
	}
	return ""
}

// balanced returns what is wrong with the lines, "" if nothing is.
func (t *Transaction) balanced() string {
	if len(t.Lines) < 2 {
		return "it has fewer than two lines"
	}
	var sum api.Micros
	seen := make(map[string]bool, len(t.Lines))
	for _, l := range t.Lines {
		var ok bool
		if sum, ok = api.Add(sum, l.Amount); !ok {
			return "its sum overflows"
		}
		if seen[l.Account] {
			return "it names " + l.Account + " twice"
		}
		seen[l.Account] = true
	}
	if sum != 0 {
		return fmt.Sprintf("its lines sum to %d, not zero", sum)
	}
	return ""
}

// traceID is the trace id inside a W3C traceparent, "" where there is none.
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
