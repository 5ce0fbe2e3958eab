package wallet

import (
	"fmt"
	"strings"

	ethcrypto "github.com/ethereum/go-ethereum/crypto"

	"github.com/anima-run/anima/pkg/api"
)

// Wallets of an agent that are not its present one are stored under other names. No agent
// has a colon in its id.
const (
	next    = "next:"    // and the agent: the wallet that a rotation in progress gives it
	retired = "retired:" // the agent, a colon and the address: a wallet that it had
)

// Next returns the name of the wallet that a rotation in progress gives an agent.
func Next(agent string) string { return next + agent }

// Retired returns the name of an earlier wallet of an agent.
func Retired(agent, address string) string { return retired + agent + ":" + address }

// Owner is whose wallet one is.
type Owner struct {
	Agent   string
	Next    bool // of a rotation in progress
	Retired bool // replaced by a rotation
}

// OwnerOf returns the owner of a wallet by its name. ok is false for a wallet of treasury
// itself.
func OwnerOf(name string) (o Owner, ok bool) {
	if agent, found := strings.CutPrefix(name, next); found {
		return Owner{Agent: agent, Next: true}, true
	}
	if rest, found := strings.CutPrefix(name, retired); found {
		agent, _, _ := strings.Cut(rest, ":")
		return Owner{Agent: agent, Retired: true}, true
	}
	return Owner{Agent: name}, name != "" && !strings.Contains(name, ":")
}

// Renew implements [Signer].
func (k *Keeper) Renew() (Wallet, error) {
	key, err := ethcrypto.GenerateKey()
	if err != nil {
		return Wallet{}, fmt.Errorf("make a key: %w", err)
	}
	return k.seal(key)
}

// Forget implements [Signer].
func (k *Keeper) Forget(agent string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.addresses, agent)
	delete(k.keys, agent)
}

// Renew implements [Signer]. The keys are not treasury's to make.
func (r *Remote) Renew() (Wallet, error) {
	return Wallet{}, &api.Error{
		Code: api.Denied, Message: "the key is at the remote signer, which gives it no other one", Next: "move the USDC with the remote signer, and apply the agent under another name",
	}
}

// Forget implements [Signer].
func (r *Remote) Forget(agent string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.addresses, agent)
}
