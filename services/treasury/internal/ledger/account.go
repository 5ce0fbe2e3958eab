package ledger

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
)

// Prefixes of the accounts of agents. All other accounts are external ("faucet",
// "provider:openai", "usdc-chain:base") and may have negative balances. So may the
// accounts of debts: what a reversal takes and the agent has spent is recorded there.
const (
	agentPrefix    = "agent:"
	heldPrefix     = "held:"
	debtPrefix     = "debt:"
	usdcPrefix     = "usdc:"
	usdcHeldPrefix = "usdc-held:"
	usdcDebtPrefix = "usdc-debt:"
)

// External accounts. The operator sells credits for USDC: it issues the credits from
// Operator and receives the USDC in OperatorUSDC. FeesUSDC receives fees.
const (
	Operator     = "operator"
	OperatorUSDC = "usdc-operator"
	FeesUSDC     = "usdc-fees"
)

const (
	chainPrefix = "usdc-chain:"
	payeePrefix = "usdc-payee:"
)

// ChainUSDC returns the account from which the USDC of a network comes, such as
// "usdc-chain:base". Its balance is the negative sum of the deposits.
func ChainUSDC(network string) string { return chainPrefix + network }

// PayeeUSDC returns the account of the USDC paid to an address outside the ledger. The
// case of the address does not matter.
func PayeeUSDC(address string) string { return payeePrefix + strings.ToLower(address) }

// Available returns the account of the credits that an agent may spend.
func Available(agent string) string { return agentPrefix + agent }

// Held returns the account of the credits in an agent's active holds.
func Held(agent string) string { return heldPrefix + agent }

// AvailableIn returns the account of what an agent may spend of an asset.
func AvailableIn(asset api.Asset, agent string) string {
	if asset == api.USDC {
		return usdcPrefix + agent
	}
	return agentPrefix + agent
}

// HeldIn returns the account of what is in an agent's active holds of an asset.
func HeldIn(asset api.Asset, agent string) string {
	if asset == api.USDC {
		return usdcHeldPrefix + agent
	}
	return heldPrefix + agent
}

// DebtIn returns the account of what an agent owes of an asset. Its balance is at most 0.
func DebtIn(asset api.Asset, agent string) string {
	if asset == api.USDC {
		return usdcDebtPrefix + agent
	}
	return debtPrefix + agent
}

// AssetOf returns the asset of an account, which follows from its name.
func AssetOf(account string) api.Asset {
	if rest, ok := strings.CutPrefix(account, "usdc"); ok && rest != "" && (rest[0] == ':' || rest[0] == '-') {
		return api.USDC
	}
	return api.Credits
}

// ownerOf returns the agent that owns an account, "" for external accounts and debts.
func ownerOf(account string) string {
	for _, prefix := range [...]string{agentPrefix, heldPrefix, usdcPrefix, usdcHeldPrefix} {
		if agent, ok := strings.CutPrefix(account, prefix); ok {
			return agent
		}
	}
	return ""
}

// debtorOf returns the agent of an account of debts, "" for other accounts.
func debtorOf(account string) string {
	for _, prefix := range [...]string{debtPrefix, usdcDebtPrefix} {
		if agent, ok := strings.CutPrefix(account, prefix); ok {
			return agent
		}
	}
	return ""
}

// AccountsOf returns all accounts of an agent.
func AccountsOf(agent string) []string {
	return []string{
		Available(agent), Held(agent), usdcPrefix + agent, usdcHeldPrefix + agent, debtPrefix + agent, usdcDebtPrefix + agent,
	}
}

// Required reports whether the account has to be stored before it is used. All others are
// stored with their first transaction.
func Required(account string) bool {
	return strings.HasPrefix(account, agentPrefix) || strings.HasPrefix(account, heldPrefix)
}

// BalanceOf returns the balance of an agent by its accounts. Errors: NotFound.
func BalanceOf(agent string, get func(id string) (Account, bool)) (Balance, error) {
	a, ok := get(Available(agent))
	held, okHeld := get(Held(agent))
	if !ok || !okHeld {
		return Balance{}, UnknownAgent(agent)
	}
	rest := func(prefix string) api.Micros {
		a, _ := get(prefix + agent)
		return a.Balance
	}
	return Balance{
		Agent: agent, Available: a.Balance, Held: held.Balance, Entries: a.Entries, USDC: rest(usdcPrefix), USDCHeld: rest(usdcHeldPrefix),
		Debt: -rest(debtPrefix), USDCDebt: -rest(usdcDebtPrefix),
	}, nil
}

// accountsIn returns the accounts that an operation on an agent's asset reads. The
// accounts of credits are always among them, because the available one counts the
// transactions of the agent.
func accountsIn(asset api.Asset, agent string) []string {
	accounts := []string{Available(agent), Held(agent)}
	if asset != api.Credits {
		accounts = append(accounts, AvailableIn(asset, agent), HeldIn(asset, agent))
	}
	return accounts
}

// Limits of ids and texts of callers, in bytes. They keep rows and events small
// (docs/reference/treasury.md, Limits).
const (
	maxID   = 200
	maxMemo = 1000
)

// Suffixes of the ids of transactions for holds and reversals. Ids of callers must not
// end in them.
const (
	suffixHold     = "/hold"
	suffixSettle   = "/settle"
	suffixRelease  = "/release"
	suffixReversal = "/reversal"
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
	for _, s := range []string{suffixHold, suffixSettle, suffixRelease, suffixReversal} {
		if strings.HasSuffix(id, s) {
			return refusal(api.Invalid, "choose another id", "id %q ends in %s, which is kept for holds and reversals", clip(id), s)
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

func checkAsset(asset api.Asset) error {
	if asset != api.Credits && asset != api.USDC {
		return refusal(api.Invalid, `leave it out for credits, or use "usdc"`, "%q is not an asset", clip(string(asset)))
	}
	return nil
}

// checkPayee checks the name of an account that is paid. payer is the agent that pays,
// "" if it is not known yet.
func checkPayee(payee, payer string) error {
	agent := ownerOf(payee)
	bad := payee == "" || len(payee) > maxID || !printable(payee) || debtorOf(payee) != "" ||
		strings.HasPrefix(payee, heldPrefix) || strings.HasPrefix(payee, usdcHeldPrefix)
	if bad || (agent != "" || payee == agentPrefix || payee == usdcPrefix) && (agent == payer || !api.ValidKey(agent)) {
		return refusal(api.Invalid, `set the payee, for example "provider:openai" or "agent:<id>"`, "%q is not a valid payee", clip(payee))
	}
	return nil
}

// checkPayeeIn is checkPayee for a payment in an asset.
func checkPayeeIn(asset api.Asset, payee, payer string) error {
	if err := checkPayee(payee, payer); err != nil {
		return err
	}
	if AssetOf(payee) != asset {
		return refusal(api.Invalid, `pay credits to "agent:<id>" or "provider:<name>", and USDC to "usdc:<agent>" or "usdc-payee:<address>"`,
			"%q is not an account of %s", clip(payee), nameOf(asset))
	}
	return nil
}

// nameOf returns the name of an asset in messages.
func nameOf(asset api.Asset) string {
	if asset == api.USDC {
		return "USDC"
	}
	return "credits"
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

// UnknownTransaction returns the error for a transaction that is not in the ledger.
func UnknownTransaction(id string) error {
	return refusal(api.NotFound, "anima ledger entries lists the transactions", "there is no transaction %q", clip(id))
}

func conflict(id, cause string) error {
	return refusal(api.Conflict, "read the hold or the entry; use a new id for a new operation", "%q %s", clip(id), cause)
}

// refusal returns an error with the advice next.
func refusal(code api.Code, next, format string, args ...any) error {
	return &api.Error{Code: code, Message: fmt.Sprintf(format, args...), Next: next}
}
