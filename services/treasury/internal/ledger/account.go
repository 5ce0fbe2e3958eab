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
		return &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("%s %q cannot be an id", what, clip(id)),
			Next: fmt.Sprintf("use 1 to %d visible ASCII characters, the same ones when you repeat the request", maxID),
		}
	}
	return nil
}

// checkOwnID is checkID for a transaction id that the caller chooses.
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
		Code: api.Invalid, Message: fmt.Sprintf("%q is not a valid payee", clip(payee)),
		Next: `set the payee, for example "provider:openai" or "agent:<id>"`,
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

// clip truncates a caller's text for an error.
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

// UnknownAgent returns the error for an agent without an account.
func UnknownAgent(agent string) error {
	return &api.Error{
		Code: api.NotFound, Message: fmt.Sprintf("agent %q has no account", clip(agent)),
		Next: "anima agent apply makes an agent and its account; anima agent list shows the ones there are",
	}
}

func conflict(id, cause string) error {
	return &api.Error{
		Code: api.Conflict, Message: fmt.Sprintf("%q %s", clip(id), cause),
		Next: "read the hold or the entry; use a new id for a new operation",
	}
}
