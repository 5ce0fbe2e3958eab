package ledger

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
)

// Prefixes of the accounts of agents. All other accounts are external ("faucet",
// "provider:openai") and may have negative balances.
const (
	agentPrefix = "agent:"
	heldPrefix  = "held:"
)

// Available returns the account of the credits that an agent may spend.
func Available(agent string) string { return agentPrefix + agent }

// Held returns the account of the credits in an agent's active holds.
func Held(agent string) string { return heldPrefix + agent }

// ownerOf returns the agent that owns an account, "" for external accounts.
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

// Limits of ids and texts of callers, in bytes. They keep rows and events small
// (docs/reference/treasury.md, Limits).
const (
	maxID   = 200
	maxMemo = 1000
)

// Suffixes of the ids of transactions for holds. Ids of callers must not end in them.
const (
	suffixHold    = "/hold"
	suffixSettle  = "/settle"
	suffixRelease = "/release"
)

func checkID(what, id string) error {
	if id == "" || len(id) > maxID || !printable(id) {
		next := fmt.Sprintf("use 1 to %d visible ASCII characters, the same ones when you repeat the request", maxID)
		return refusal(api.Invalid, next, "%s %q cannot be an id", what, clip(id))
	}
	return nil
}

// checkOwnID is checkID for a transaction id that the caller chooses.
func checkOwnID(id string) error {
	for _, s := range []string{suffixHold, suffixSettle, suffixRelease} {
		if strings.HasSuffix(id, s) {
			return refusal(api.Invalid, "choose another id", "id %q ends in %s, which is kept for holds", clip(id), s)
		}
	}
	return checkID("id", id)
}

func checkAgent(agent string) error {
	if !api.ValidKey(agent) {
		return refusal(api.Invalid, "use letters, digits, - and _", "%q is not an agent's id", clip(agent))
	}
	return nil
}

func checkAmount(amount, least api.Micros) error {
	if amount < least || amount > api.MaxMicros {
		return refusal(api.Invalid, fmt.Sprintf("use %d to %d", least, api.MaxMicros), "an amount of %d micro-USD cannot be moved", amount)
	}
	return nil
}

func checkPayee(payee, payer string) error {
	agent, ok := strings.CutPrefix(payee, agentPrefix)
	if payee == "" || len(payee) > maxID || !printable(payee) || strings.HasPrefix(payee, heldPrefix) || ok && (agent == payer || !api.ValidKey(agent)) {
		return refusal(api.Invalid, `set the payee, for example "provider:openai" or "agent:<id>"`, "%q is not a valid payee", clip(payee))
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

// clip truncates a caller's text for an error.
func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// UnknownAgent returns the error for an agent without an account.
func UnknownAgent(agent string) error {
	return refusal(api.NotFound, "anima agent apply makes an agent and its account; anima agent list shows the ones there are",
		"agent %q has no account", clip(agent))
}

func conflict(id, cause string) error {
	return refusal(api.Conflict, "read the hold or the entry; use a new id for a new operation", "%q %s", clip(id), cause)
}

// refusal returns an error with the advice next.
func refusal(code api.Code, next, format string, args ...any) error {
	return &api.Error{Code: code, Message: fmt.Sprintf(format, args...), Next: next}
}
