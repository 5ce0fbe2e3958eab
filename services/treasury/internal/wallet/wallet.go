// Package wallet stores one key per agent and signs with it. Keys are stored as encrypted
// keystore v3 files in a [Store] and are decrypted once, or they are in another process
// that signs ([Remote]). They must not leave the package: not in answers, errors or logs.
// The package signs messages that it composes itself, and typed data and transactions
// that it has checked against a rule; it must not sign a given hash.
package wallet

import (
	"context"
	"crypto/ecdsa"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/ethereum/go-ethereum/accounts/keystore"
	ethcrypto "github.com/ethereum/go-ethereum/crypto"
	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
)

// Wallet is a stored key.
type Wallet struct {
	Address  string // EIP-55
	Keystore string // v3 JSON, encrypted; "" if a remote signer has the key
}

// Store stores wallets. It must be safe for concurrent use, also by several processes.
type Store interface {
	// Wallet returns the wallet of an agent. Errors: [api.NotFound].
	Wallet(ctx context.Context, agent string) (Wallet, error)
	// AddWallet stores w unless the agent has a wallet, and returns the stored wallet. If
	// the address is that of another agent, it stores nothing. Errors: [api.NotFound] then.
	AddWallet(ctx context.Context, agent string, w Wallet) (Wallet, error)
}

// LightN is the scrypt cost of go-ethereum's light keystores. The passphrase is random
// unless an operator sets one, so a higher cost adds little security, and it is paid for
// each agent.
const LightN = keystore.LightScryptN

// scryptP is the scrypt parallelism of new keys. With 1, decrypting a key takes about 10
// ms; the 6 of go-ethereum's light profile is for passphrases that people type.
const scryptP = 1

// probe is the agent id of a wallet that belongs to no agent (an agent's id is never
// empty). The first process creates it; other processes decrypt it to verify their
// passphrase.
const probe = ""

// Keeper creates and opens wallets. It is safe for concurrent use.
type Keeper struct {
	store   Store
	reveal  func() string // returns the passphrase; a function, because fmt prints fields
	scryptN int

	mu        sync.RWMutex
	addresses map[string]string
	keys      map[string]*key
	opening   sync.Mutex // serializes scrypt, because each run takes ScryptN KiB of memory
}

// NewKeeper returns a keeper. scryptN is the scrypt cost of new keys, a power of two.
func NewKeeper(store Store, passphrase config.Secret, scryptN int) *Keeper {
	return &Keeper{
		store: store, reveal: passphrase.Reveal, scryptN: scryptN,
		addresses: map[string]string{}, keys: map[string]*key{},
	}
}

// Check verifies that the passphrase opens the wallets of the database, before a wallet
// is created with another passphrase.
func (k *Keeper) Check(ctx context.Context) error {
	if _, err := k.Create(ctx, probe); err != nil {
		return err
	}
	_, err := k.unlock(ctx, probe)
	return err
}

// Create returns the address of an agent's wallet. It creates the wallet if there is
// none.
func (k *Keeper) Create(ctx context.Context, agent string) (string, error) {
	address, err := k.Address(ctx, agent)
	if api.CodeOf(err) != api.NotFound {
		return address, err
	}
	key, err := ethcrypto.GenerateKey()
	if err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	fresh, err := k.seal(key)
	if err != nil {
		return "", err
	}
	stands, err := k.store.AddWallet(ctx, agent, fresh)
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.addresses[agent] = stands.Address
	if stands.Address == fresh.Address {
		k.keys[agent] = newKey(key)
	}
	return stands.Address, nil
}

func (k *Keeper) seal(key *ecdsa.PrivateKey) (Wallet, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return Wallet{}, fmt.Errorf("name a key: %w", err)
	}
	address := ethcrypto.PubkeyToAddress(key.PublicKey)
	k.opening.Lock()
	defer k.opening.Unlock()
	file, err := keystore.EncryptKey(&keystore.Key{Id: id, Address: address, PrivateKey: key}, k.reveal(), k.scryptN, scryptP)
	if err != nil {
		return Wallet{}, fmt.Errorf("encrypt a key: %w", err)
	}
	return Wallet{Address: address.Hex(), Keystore: string(file)}, nil
}

// Address returns the address of an agent's wallet, EIP-55. Errors: NotFound.
func (k *Keeper) Address(ctx context.Context, agent string) (string, error) {
	k.mu.RLock()
	address, ok := k.addresses[agent]
	k.mu.RUnlock()
	if ok {
		return address, nil
	}
	w, err := k.store.Wallet(ctx, agent)
	if err != nil {
		return "", err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.addresses[agent] = w.Address
	return w.Address, nil
}

// open returns the key of an agent. Errors: NotFound; Unavailable if the passphrase does
// not open the wallet.
func (k *Keeper) open(ctx context.Context, agent string) (*key, error) {
	if agent == probe {
		return nil, api.Errorf(api.NotFound, "no agent is named")
	}
	return k.unlock(ctx, agent)
}

func (k *Keeper) unlock(ctx context.Context, agent string) (*key, error) {
	if s := k.opened(agent); s != nil {
		return s, nil
	}
	w, err := k.store.Wallet(ctx, agent)
	if err != nil {
		return nil, err
	}
	if w.Keystore == "" {
		return nil, elsewhere(w.Address)
	}
	k.opening.Lock()
	defer k.opening.Unlock()
	if s := k.opened(agent); s != nil {
		return s, nil
	}
	opened, err := keystore.DecryptKey([]byte(w.Keystore), k.reveal())
	if err != nil {
		return nil, &api.Error{
			Code: api.Unavailable, Message: "the wallet cannot be opened: " + err.Error(),
			Next: "give the treasury the passphrase that its wallets were made with, the same on every replica (ANIMA_TREASURY_KEYSTORE_PASSPHRASE_FILE)",
		}
	}
	s := newKey(opened.PrivateKey)
	if s.address.Hex() != w.Address {
		return nil, fmt.Errorf("the keystore of agent %q holds the key of another address", agent)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.addresses[agent], k.keys[agent] = w.Address, s
	return s, nil
}

func (k *Keeper) opened(agent string) *key {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.keys[agent]
}

// Backup returns the wallet of an agent as it is stored, encrypted. Errors: NotFound;
// Denied if the key is at a remote signer.
func (k *Keeper) Backup(ctx context.Context, agent string) (Wallet, error) {
	if agent == probe {
		return Wallet{}, api.Errorf(api.NotFound, "no agent is named")
	}
	w, err := k.store.Wallet(ctx, agent)
	if err == nil && w.Keystore == "" {
		return Wallet{}, noKeys()
	}
	return w, err
}

// Restore stores a wallet from a backup and returns its address. The passphrase must be
// that of the backup. Restoring the wallet that stands does nothing. Errors: Invalid,
// Conflict.
func (k *Keeper) Restore(ctx context.Context, agent, file string) (string, error) {
	if agent == probe {
		return "", api.Errorf(api.NotFound, "no agent is named")
	}
	if len(file) > maxKeystore {
		return "", &api.Error{Code: api.Invalid, Message: "the backup is longer than a keystore", Next: "use the file that anima wallet backup has written"}
	}
	if err := cheap(file); err != nil {
		return "", err
	}
	k.opening.Lock()
	opened, err := keystore.DecryptKey([]byte(file), k.reveal())
	k.opening.Unlock()
	if err != nil {
		return "", &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("the backup cannot be opened: %.100v", err),
			Next: "use the file that anima wallet backup has written, with the passphrase of that installation",
		}
	}
	address := ethcrypto.PubkeyToAddress(opened.PrivateKey.PublicKey).Hex()
	stands, err := k.store.AddWallet(ctx, agent, Wallet{Address: address, Keystore: file})
	if err != nil && api.CodeOf(err) != api.NotFound {
		return "", err
	}
	if stands.Address != address {
		return "", &api.Error{
			Code: api.Conflict, Message: fmt.Sprintf("agent %.40q has another wallet, or another agent has the one of the backup", agent),
			Next: "restore it for an agent without a wallet; a wallet is never replaced",
		}
	}
	return address, nil
}

const (
	maxKeystore = 4096    // bytes; go-ethereum's are about 500
	maxScryptN  = 1 << 18 // go-ethereum's standard, which takes 256 MiB of memory
)

// cheap refuses a keystore whose decryption would take more memory than the standard one.
func cheap(file string) error {
	var k struct {
		Crypto struct {
			KDF    string `json:"kdf"`
			Params struct {
				N int `json:"n"`
				R int `json:"r"`
				P int `json:"p"`
			} `json:"kdfparams"`
		} `json:"crypto"`
	}
	err := json.Unmarshal([]byte(file), &k)
	p := k.Crypto.Params
	if err != nil || k.Crypto.KDF != "scrypt" || p.N > maxScryptN || p.R > 8 || p.P > 6 {
		return &api.Error{Code: api.Invalid, Message: "the backup is not a keystore of version 3 with scrypt", Next: "use the file that anima wallet backup has written"}
	}
	return nil
}

func noKeys() error {
	return &api.Error{Code: api.Denied, Message: "the key is at the remote signer", Next: "back it up and restore it there"}
}

// elsewhere returns the error for a wallet whose key the remote signer has.
func elsewhere(address string) error {
	return &api.Error{
		Code: api.Unavailable, Message: "the key of " + address + " is at a remote signer, and none is configured",
		Next: "set ANIMA_TREASURY_SIGNER_URL as it was when the wallet was made",
	}
}
