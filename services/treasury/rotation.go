package treasury

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"
	"github.com/anima-run/anima/pkg/wait"

	"github.com/anima-run/anima/services/treasury/internal/sqlstore"
	"github.com/anima-run/anima/services/treasury/internal/wallet"
	"github.com/anima-run/anima/services/treasury/internal/x402"
)

// rotations gives agents other wallets. While the next wallet of an agent is stored, no
// payment of the agent is signed ([guarded]).
type rotations struct {
	*handlers

	store *sqlstore.Store
	plain wallet.Signer // signs for agents whose wallet is rotated, too
	alone bool          // no other process signs
	wake  func()        // notifies the outbox relay of new rows
	kick  func()        // continues purchases, which have waited
}

// rotate replaces the wallet of an agent: it stores the next wallet, moves the USDC to it,
// and makes it the present one. If the process dies between two steps, the next wallet is
// stored, payments of the agent wait, and the repeated request continues: the token
// executes the authorization of a rotation once, by its nonce. After the last step a
// repeated request returns the result, and moves what the earlier wallet has got since, or
// has got back by a reorganization of the chain.
func (r *rotations) rotate(ctx context.Context, m api.RotateWallet) (api.RotatedWallet, error) {
	agent, was := strings.ToLower(m.Agent), common.HexToAddress(m.Address).Hex()
	done := api.RotatedWallet{Agent: agent, Earlier: was}
	address, _, err := r.store.Rotating(ctx, agent)
	if err != nil {
		return done, err
	}
	if address != was {
		if _, err := r.store.Wallet(ctx, wallet.Retired(agent, was)); api.CodeOf(err) != api.NotFound {
			if err == nil {
				done.Moved, done.Tx, err = r.sweep(ctx, agent, was, address)
			}
			done.Address = address
			return done, err
		}
		if _, err := r.store.Wallet(ctx, agent); err != nil {
			return done, err
		}
		return done, &api.Error{Code: api.Conflict, Message: fmt.Sprintf("the wallet of %s is %s", agent, address), Next: "name this address: anima wallet show " + agent}
	}
	if done.Address, err = r.begin(ctx, agent); err != nil {
		return done, err
	}
	if r.chain != nil {
		var has api.Micros
		if has, err = r.left(ctx, was); err == nil && has > 0 {
			done.Moved, done.Tx, err = r.move(ctx, agent, was, done.Address, has)
		}
		if err != nil {
			return done, err
		}
	}
	err = r.store.EndRotation(ctx, agent, was, func(ctx context.Context, tx *sqldb.Tx, to string) error {
		return outbox.Add(ctx, tx, "wallet_changed/"+agent+"/"+to, api.WalletChanged{Agent: agent, Earlier: was, Address: to, At: r.now().UnixMicro()})
	})
	if err != nil {
		return done, err
	}
	r.wallets.Forget(agent)
	r.wake()
	r.kick()
	r.log.WarnContext(ctx, "the wallet of an agent was rotated", "agent", agent, "earlier", was, "address", done.Address, "moved", done.Moved)
	return done, nil
}

// begin stores the next wallet of an agent and returns its address. It refuses while USDC
// is held, also if that is seen only afterwards: the payment may be signed, and its money
// must stay where the authorization takes it from. Payments are held before they are signed, so those that
// are held later are not signed before the end of the rotation. A rotation that was begun
// is continued without this check: a payment that was signed during a crash in between
// fails on the chain, and its hold is released.
func (r *rotations) begin(ctx context.Context, agent string) (string, error) {
	if err := r.chain.spendable(ctx, agent); err != nil {
		return "", err
	}
	fresh, err := r.plain.Renew()
	if err != nil {
		return "", err
	}
	if _, rotating, err := r.store.Rotating(ctx, agent); err != nil {
		return "", err
	} else if !rotating {
		if err := r.movable(ctx, agent); err != nil {
			return "", err
		}
	}
	to, err := r.store.AddWallet(ctx, wallet.Next(agent), fresh)
	if err != nil || to.Address != fresh.Address {
		return to.Address, err
	}
	if err = r.movable(ctx, agent); err == nil {
		return to.Address, nil
	}
	if dropped := r.store.DropRotation(ctx, agent, to.Address); dropped != nil {
		return "", dropped
	}
	return "", err
}

// movable returns an error if the USDC of an agent cannot be moved now.
func (r *rotations) movable(ctx context.Context, agent string) error {
	b, err := r.ledger.Balance(ctx, agent)
	switch {
	case err != nil:
		return err
	case b.USDCHeld > 0:
		return &api.Error{
			Code: api.Conflict, Reason: api.ReasonBusy, Message: fmt.Sprintf("payments of %s are in flight: %s of USDC is held", agent, b.USDCHeld),
			Next: "wait for their end: anima payment list " + agent + "; then rotate the wallet again", RetryAfter: 5000,
		}
	case r.chain != nil && r.link == nil || r.chain == nil && b.USDC > 0:
		return &api.Error{
			Code: api.Denied, Reason: api.ReasonNoChain, Message: "the USDC of the wallet cannot be moved: treasury has no chain, or its wallet for fees cannot be opened",
			Next: "set ANIMA_TREASURY_RPC_URL and ANIMA_TREASURY_NETWORK, and look at the log of treasury",
		}
	}
	return nil
}

// rotationWindow is how long the authorization of a rotation is valid.
const rotationWindow = 10 * time.Minute

// maxMoves bounds the transfers from one wallet to another: each has a nonce of its own.
const maxMoves = 100

// sweep moves the USDC of an earlier wallet to the present one. Errors: as of begin.
func (r *rotations) sweep(ctx context.Context, agent, was, to string) (api.Micros, string, error) {
	if r.chain == nil {
		return 0, "", nil
	}
	has, err := r.left(ctx, was)
	if err != nil || has == 0 {
		return 0, "", err
	}
	if err := r.chain.spendable(ctx, agent); err != nil {
		return 0, "", err
	}
	if err := r.movable(ctx, agent); err != nil {
		return 0, "", err
	}
	name := wallet.Retired(agent, was)
	defer r.plain.Forget(name)
	moved, tx, err := r.move(ctx, name, was, to, has)
	if err == nil {
		r.log.InfoContext(ctx, "the USDC of an earlier wallet was moved", "agent", agent, "earlier", was, "address", to, "moved", moved, "tx", tx)
	}
	return moved, tx, err
}

// left returns the USDC of a wallet at the last block, which the watcher has read.
func (r *rotations) left(ctx context.Context, address string) (api.Micros, error) {
	if err := r.chain.ready(); err != nil {
		return 0, err
	}
	at, err := r.chain.pass(ctx)
	if err != nil {
		return 0, err
	}
	has, err := r.chain.client.BalancesAt(ctx, at.Hash, common.HexToAddress(address))
	if err != nil {
		return 0, err
	}
	return has[0], nil
}

// move sends USDC of the wallet with this name and address to another one of its agent, and
// waits until the transfer is included in a block. The ledger has no part in it: the USDC
// stays the agent's, and the watcher takes the transfer for no deposit. A transfer that a
// reorganization has removed is made again with the same nonce.
func (r *rotations) move(ctx context.Context, name, was, next string, value api.Micros) (api.Micros, string, error) {
	from, to := common.HexToAddress(was), common.HexToAddress(next)
	nonce, err := r.unused(ctx, from, to)
	if err != nil {
		return 0, "", err
	}
	now, n := r.now(), r.link.Network()
	a := x402.Authorization{From: from, To: to, Value: value, ValidAfter: now.Add(-time.Minute).Unix(), ValidBefore: now.Add(rotationWindow).Unix(), Nonce: nonce}
	sig, err := walletSigner{r.plain}.Sign(ctx, name, a, x402.Terms{Network: n, PayTo: to, Amount: a.Value}, now)
	if err != nil {
		return 0, "", err
	}
	tx, ok, err := r.link.Transfer(ctx, a, sig)
	if err == nil && !ok {
		err = &api.Error{Code: api.Unavailable, Message: "the token has refused the transfer to the other wallet", Next: "rotate the wallet again; anima chain shows the state of the chain"}
	}
	return a.Value, tx, err
}

// unused returns the nonce of the next transfer from one wallet to another.
func (r *rotations) unused(ctx context.Context, from, to common.Address) (common.Hash, error) {
	for i := range maxMoves {
		parts := [][]byte{[]byte("anima wallet rotation"), from[:], to[:]}
		if i > 0 {
			parts = append(parts, []byte(strconv.Itoa(i)))
		}
		nonce := crypto.Keccak256Hash(parts...)
		if used, err := r.link.Used(ctx, from, nonce); !used || err != nil {
			return nonce, err
		}
	}
	return common.Hash{}, &api.Error{
		Code: api.Denied, Message: fmt.Sprintf("%s was emptied %d times", from, maxMoves), Next: "anima wallet backup AGENT FILE --address " + from.Hex() + " writes its key; move the USDC with another wallet",
	}
}

// followRotations is how often a replica looks for rotations of the others.
const followRotations = 5 * time.Second

// follow makes the signer forget wallets that other replicas have rotated, until ctx ends.
// Until then a replica may sign a message with the earlier key, which peers refuse; it
// signs no payment with it, because [guarded] reads the address.
func (r *rotations) follow(ctx context.Context) error {
	if r.alone {
		return nil
	}
	known := map[string]bool{}
	wait.Every(ctx, followRotations, func() {
		names, err := r.store.RetiredWallets(ctx)
		if err != nil && ctx.Err() == nil {
			r.log.WarnContext(ctx, "rotated wallets not read, retrying", "err", err)
		}
		for _, name := range names {
			if o, _ := wallet.OwnerOf(name); !known[name] {
				known[name] = true
				r.wallets.Forget(o.Agent)
			}
		}
	})
	return nil
}
