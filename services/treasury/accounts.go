package treasury

import (
	"context"
	"fmt"
	"strings"

	"github.com/ethereum/go-ethereum/common"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/treasury/internal/wallet"
)

// directory finds agents by the addresses of their wallets, and the other way round.
type directory interface {
	// AgentAt returns the agent with an address, in any case, and "" if there is none.
	AgentAt(ctx context.Context, address string) (string, error)
	// Earlier returns the addresses of the wallets that an agent had.
	Earlier(ctx context.Context, agent string) ([]string, error)
	// Wallets returns the owners of all wallets, those that agents have, had and get by a
	// rotation.
	Wallets(ctx context.Context) (map[common.Address]wallet.Owner, error)
}

// addressOf returns the address of an account, EIP-55: that of the agent's wallet, or the
// name of an account of an address outside this installation.
func (h *handlers) addressOf(ctx context.Context, account string) (string, error) {
	if api.IsAddress(account) {
		return common.HexToAddress(account).Hex(), nil
	}
	return h.wallets.Address(ctx, account)
}

// accountAt returns the account of an address. An address of no agent here has an account
// once its owner has used an API key. Errors: Invalid, also for an address without an
// account: NotFound would be repeated by existing clients.
func (h *handlers) accountAt(ctx context.Context, address string) (string, error) {
	if err := checkAddress(address); err != nil {
		return "", err
	}
	agent, err := h.directory.AgentAt(ctx, address)
	if err != nil {
		return "", err
	}
	account := api.AccountOf(agent, address)
	if agent != "" {
		return account, nil
	}
	if _, err = h.ledger.Balance(ctx, account); api.CodeOf(err) == api.NotFound {
		err = &api.Error{
			Code: api.Invalid, Reason: reasonRecipient, Message: "no account has the address " + common.HexToAddress(address).Hex(),
			Next: "name the address of an agent, or of a wallet that has signed in here",
		}
	}
	return account, err
}

// reasonRecipient is the reason of an address without an account.
const reasonRecipient = "unknown_recipient"

// checkAddress refuses an address with a wrong checksum. One in lower or upper case has
// no checksum.
func checkAddress(address string) error {
	if !api.IsAddress(address) {
		return &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%.50q is not an address", address), Next: "write 0x and 40 hex digits"}
	}
	digits := address[2:]
	if digits != strings.ToLower(digits) && digits != strings.ToUpper(digits) && common.HexToAddress(address).Hex() != address {
		return &api.Error{Code: api.Invalid, Message: "the checksum of the address " + address + " is wrong", Next: "copy it again: a digit or a letter was changed"}
	}
	return nil
}

// ensureAccount opens the account of an address outside this installation, whose owner
// has authenticated. The accounts of agents are opened with the agents.
func (h *handlers) ensureAccount(ctx context.Context, account string) error {
	if !api.IsAddress(account) {
		return nil
	}
	_, err := h.ledger.Balance(ctx, account)
	if api.CodeOf(err) == api.NotFound {
		err = h.ledger.Open(ctx, account)
	}
	return err
}
