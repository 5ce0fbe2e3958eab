-- How far the transfers of a network have been read: the last block, with its hash, so
-- that a reorganization is noticed.
create table chain_cursors (
	network text not null primary key,
	block bigint not null,
	hash text not null
);

-- Transfers of USDC to wallets of agents. ordinal counts the transfers to one wallet in
-- one transaction: unlike the index of a log, it does not change when the transaction is
-- moved to another block. posting is the id of the ledger's transaction; another
-- inclusion after a reversal has another one.
create table chain_deposits (
	network text not null,
	tx text not null,
	wallet text not null,
	ordinal bigint not null,
	agent text not null,
	sender text not null,
	value bigint not null check (value > 0),
	block bigint not null,
	hash text not null,
	state text not null check (state in ('pending', 'included', 'safe', 'final', 'reversed')),
	inclusions bigint not null,
	posting text not null,
	seen_at bigint not null,
	primary key (network, tx, wallet, ordinal)
);
create index chain_deposits_open on chain_deposits (network, block) where state in ('pending', 'included', 'safe');
create index chain_deposits_agent on chain_deposits (agent, seen_at);

-- Agents whose USDC in the ledger is not what the chain says. accepted is the difference
-- that an operator has accepted so far: it is subtracted from later ones.
create table chain_freezes (
	agent text not null,
	network text not null,
	difference bigint not null,
	block bigint not null,
	since bigint not null,
	resolved_at bigint not null,
	accepted bigint not null,
	note text not null,
	primary key (agent, network)
);
