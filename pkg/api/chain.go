package api

// GetChain requests the [ChainState]. Errors: NotFound if treasury has no chain.
type GetChain struct{}

// ChainState is the state of treasury's access to the chain.
type ChainState struct {
	Network string `json:"network"` // base, base-sepolia or dev
	ChainID int64  `json:"chainId"`
	Token   string `json:"token"`           // address of USDC
	OK      bool   `json:"ok"`              // the chain was read, and the token's domain is the known one
	Error   string `json:"error,omitempty"` // why not
	// Block is the last block whose transfers were read, ReadAt when; both are 0 before
	// the first.
	Block  uint64 `json:"block,omitempty"`
	ReadAt int64  `json:"readAt,omitempty"`
	Frozen int    `json:"frozen,omitempty"` // number of agents whose USDC is frozen
}

// GetWallet requests the [WalletState] of an agent. Errors: NotFound.
type GetWallet struct {
	Agent string `json:"agent"`
}

// WalletState is the wallet of an agent with its USDC on the chain.
type WalletState struct {
	Agent   string `json:"agent"`
	Address string `json:"address"`
	// Earlier are the addresses of wallets that [RotateWallet] has replaced. What is sent to
	// them is the agent's, in the ledger; treasury does not spend it. Left lists those that
	// have USDC, which another RotateWallet moves.
	Earlier []string     `json:"earlier,omitempty"`
	Left    []WalletRest `json:"left,omitempty"`
	Network string       `json:"network,omitempty"` // "" if treasury has no chain
	// Known is false while the balance was never read; then OnChain is 0 and means
	// nothing. A stale balance is the last one that was read.
	Known     bool   `json:"known"`
	Stale     bool   `json:"stale,omitempty"`
	OnChain   Micros `json:"onChain"`
	Block     uint64 `json:"block,omitempty"`
	BlockHash string `json:"blockHash,omitempty"`
	ReadAt    int64  `json:"readAt,omitempty"`
	Error     string `json:"error,omitempty"` // why it is stale or not known
	// Ledger is the USDC of the agent in the ledger, with what is held.
	Ledger   Micros         `json:"ledger"`
	Held     Micros         `json:"held,omitempty"`
	Frozen   *Freeze        `json:"frozen,omitempty"`
	Deposits []ChainDeposit `json:"deposits,omitempty"` // the last 10
}

// WalletRest is the USDC that an earlier wallet of an agent has on the chain.
type WalletRest struct {
	Address string `json:"address"`
	OnChain Micros `json:"onChain"`
}

// Freeze is a difference between the ledger and the chain that is not explained. The
// agent cannot spend USDC until an operator has resolved it.
type Freeze struct {
	Difference Micros `json:"difference"` // positive: the ledger has more
	Block      uint64 `json:"block"`
	Since      int64  `json:"since"`
}

// ChainDeposit is a transfer of USDC to the wallet of an agent. State is pending, included,
// safe, final or reversed.
type ChainDeposit struct {
	Agent   string `json:"agent"`
	From    string `json:"from"`
	Amount  Micros `json:"amount"`
	Tx      string `json:"tx"`
	Block   uint64 `json:"block"`
	State   string `json:"state"`
	Posting string `json:"posting"` // id of the ledger's transaction
	SeenAt  int64  `json:"seenAt"`
}

// FundUSDC has the faucet of the dev chain pay USDC to an agent's wallet. The answer is
// [FundedUSDC]. Repeating an id pays nothing. Errors: NotFound, Invalid, Denied (not the
// dev chain), Unavailable.
type FundUSDC struct {
	ID     string `json:"id"`
	Agent  string `json:"agent"`
	Amount Micros `json:"amount"`
}

// FundedUSDC is the answer to [FundUSDC]. Tx is "" for a repeated id.
type FundedUSDC struct {
	Address string `json:"address"`
	Tx      string `json:"tx,omitempty"`
}

// ReconcileLedger compares the USDC of the ledger with the chain, for one agent or, with
// Agent "", for all. The answer is a [Reconciliation], also with differences. Errors:
// NotFound, Unavailable if the chain cannot be read.
type ReconcileLedger struct {
	Agent string `json:"agent,omitempty"`
}

// Reconciliation compares the ledger with the chain at a block.
type Reconciliation struct {
	Network  string       `json:"network"`
	Block    uint64       `json:"block"`
	Hash     string       `json:"hash"`
	OK       bool         `json:"ok"` // no agent has a difference or is frozen
	Accounts []Reconciled `json:"accounts"`
}

// Reconciled is one agent of a [Reconciliation].
type Reconciled struct {
	Agent      string   `json:"agent"`
	Address    string   `json:"address"`
	Ledger     Micros   `json:"ledger"`
	Chain      Micros   `json:"chain"`
	Held       Micros   `json:"held,omitempty"`
	Difference Micros   `json:"difference,omitempty"` // unexplained; positive: the ledger has more
	Frozen     bool     `json:"frozen,omitempty"`
	Used       []string `json:"used,omitempty"` // nonces of authorizations used since the last agreement, with a difference
}

// ResolveFreeze accepts the difference of a frozen agent, which can spend USDC again. The
// answer is the [WalletState]. Errors: NotFound (not frozen), Invalid (no note).
type ResolveFreeze struct {
	Agent string `json:"agent"`
	Note  string `json:"note"` // why the difference is right
}

// BackupWallet requests the [WalletBackup] of an agent. Errors: NotFound (also Address),
// Invalid (Address), Denied (the key is at a remote signer).
type BackupWallet struct {
	Agent string `json:"agent"`
	// Address is that of an earlier wallet of the agent, which [RotateWallet] has replaced;
	// "": the present one.
	Address string `json:"address,omitempty"`
}

// WalletBackup is a wallet as it is stored: the key is encrypted with the passphrase of
// treasury (keystore v3), which is not part of the backup.
type WalletBackup struct {
	Agent    string `json:"agent"`
	Address  string `json:"address"`
	Keystore string `json:"keystore"`
}

// RestoreWallet stores the wallet of an agent that has none, from a backup. The answer is
// the [Account]. It is idempotent. Errors: Invalid (not a keystore, another passphrase),
// Conflict (the agent has another wallet, or another agent has this one).
type RestoreWallet struct {
	Agent    string `json:"agent"`
	Keystore string `json:"keystore"`
}

// RotateWallet gives an agent another wallet. The USDC of the present one moves to it, and
// the key of the present one stays stored, encrypted, for [BackupWallet]. While the wallet
// is rotated, no payment of the agent is signed. A repeated request, also after a crash,
// continues the rotation or returns its result. With the address of an earlier wallet it
// moves the USDC that this wallet has to the present one: deposits that came later, or what
// a reorganization of the chain has put back. The answer is a [RotatedWallet]. Errors:
// NotFound, Conflict (Address is not that of the present wallet, or payments of the agent
// are in flight), Denied (the key is at a remote signer, the USDC is frozen), Unavailable
// (the chain does not answer; repeat the request).
type RotateWallet struct {
	Agent   string `json:"agent"`
	Address string `json:"address"` // of the wallet that is replaced
}

// RotatedWallet is the result of a [RotateWallet].
type RotatedWallet struct {
	Agent   string `json:"agent"`
	Earlier string `json:"earlier"` // address that was replaced
	Address string `json:"address"`
	Moved   Micros `json:"moved,omitempty"` // USDC that this request has moved
	Tx      string `json:"tx,omitempty"`    // its transaction
}

// WalletChanged is published when an agent has got another wallet. A reader asks for the
// present address with [OpenAccount], because events may arrive late.
type WalletChanged struct {
	Agent   string `json:"agent"`
	Earlier string `json:"earlier"`
	Address string `json:"address"`
	At      int64  `json:"at"`
}

// The implementations of [Message] by the types of this file.

func (GetChain) Subject() Subject        { return request(Treasury, "get_chain") }
func (GetWallet) Subject() Subject       { return request(Treasury, "get_wallet") }
func (FundUSDC) Subject() Subject        { return request(Treasury, "fund_usdc") }
func (ReconcileLedger) Subject() Subject { return request(Treasury, "reconcile_ledger") }
func (ResolveFreeze) Subject() Subject   { return request(Treasury, "resolve_freeze") }
func (BackupWallet) Subject() Subject    { return request(Treasury, "backup_wallet") }
func (RestoreWallet) Subject() Subject   { return request(Treasury, "restore_wallet") }
func (RotateWallet) Subject() Subject    { return request(Treasury, "rotate_wallet") }
func (m WalletChanged) Subject() Subject { return event(Treasury, "wallet_changed", m.Agent) }
