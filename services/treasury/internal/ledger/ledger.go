// Package ledger keeps the books: accounts, transactions that sum to zero, and
// holds that reserve money before it is spent. It decides every question of
// money in Go, in one place, and leaves keeping to a [Store]. It must not know
// messages, NATS or SQL.
//
// A [Book] takes operations from many goroutines and writes them in groups:
// what waits at the same time shares one commit. Every operation carries an id
// and is idempotent on it. Errors are [api.Error]; any other error is a fault of
// the store.
package ledger

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
)

// Prefixes of the accounts that belong to agents. Every other account stands
// for the world outside ("faucet", "provider:openai") and may go below zero.
const (
	agentPrefix = "agent:"
	heldPrefix  = "held:"
)

// Available is the account of what an agent may spend.
func Available(agent string) string { return agentPrefix + agent }

// Held is the account of what is reserved for an agent's active holds.
func Held(agent string) string { return heldPrefix + agent }

// ownerOf returns the agent whose money an account keeps, "" for the accounts
// of the world.
func ownerOf(account string) string {
	if agent, ok := strings.CutPrefix(account, agentPrefix); ok {
		return agent
	}
	agent, _ := strings.CutPrefix(account, heldPrefix)
	if agent == account {
		return ""
	}
	return agent
}

// Limits of what callers may write into the books. Seeds and specs set none;
// these keep a row and the event made from it small.
const (
	maxID   = 200
	maxMemo = 1000
)

// suffixes of the transactions made for a hold; nobody else may use them.
const (
	suffixHold    = "/hold"
	suffixSettle  = "/settle"
	suffixRelease = "/release"
)

func checkID(what, id string) error {
	if id == "" || len(id) > maxID || !printable(id) {
		return &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("%s %q cannot be an id", what, clip(id)),
			Next: fmt.Sprintf("use 1 to %d visible ASCII characters, the same ones when you repeat the request", maxID),
		}
	}
	return nil
}

// checkOwnID is checkID for transactions whose id is the caller's own.
func checkOwnID(id string) error {
	for _, s := range []string{suffixHold, suffixSettle, suffixRelease} {
		if strings.HasSuffix(id, s) {
			return &api.Error{
				Code: api.Invalid, Message: fmt.Sprintf("id %q ends in %s, which is kept for holds", clip(id), s),
				Next: "choose another id",
			}
		}
	}
	return checkID("id", id)
}

func checkAgent(agent string) error {
	if !api.ValidKey(agent) {
		return &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("%q is not an agent's id", clip(agent)),
			Next: "use letters, digits, - and _",
		}
	}
	return nil
}

func checkAmount(amount, least api.Micros) error {
	if amount < least || amount > api.MaxMicros {
		return &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("an amount of %d micro-USD cannot be moved", amount),
			Next: fmt.Sprintf("use %d to %d", least, api.MaxMicros),
		}
	}
	return nil
}

func checkPayee(payee, payer string) error {
	fault := &api.Error{
		Code: api.Invalid, Message: fmt.Sprintf("%q cannot be paid", clip(payee)),
		Next: `name who is paid, for example "provider:openai" or "agent:<id>"`,
	}
	if payee == "" || len(payee) > maxID || !printable(payee) || strings.HasPrefix(payee, heldPrefix) {
		return fault
	}
	if agent, ok := strings.CutPrefix(payee, agentPrefix); ok && (agent == payer || !api.ValidKey(agent)) {
		return fault
	}
	return nil
}

func checkText(what, s string) error {
	if len(s) > maxMemo || !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return api.Errorf(api.Invalid, "the %s is longer than %d bytes or not plain text", what, maxMemo)
	}
	return nil
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// clip keeps what a caller sent short in an error.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

func firstFault(faults ...error) error {
	for _, err := range faults {
		if err != nil {
			return err
		}
	}
	return nil
}

// UnknownAgent is the error about an agent that has no account.
func UnknownAgent(agent string) error {
	return &api.Error{
		Code: api.NotFound, Message: fmt.Sprintf("agent %q has no account", clip(agent)),
		Next: "anima agent apply makes an agent and its account; anima agent list shows the ones there are",
	}
}

func conflict(id, cause string) error {
	return &api.Error{
		Code: api.Conflict, Message: fmt.Sprintf("%q %s", clip(id), cause),
		Next: "read the hold or the entry again; use a new id for new money",
	}
}
