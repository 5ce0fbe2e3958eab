-- Keys of agents, encrypted (keystore v3). The wallet of the agent '' belongs to
-- nobody: it proves that a replica has the passphrase.
create table wallets (
	agent text not null primary key,
	address text not null unique,
	keystore text not null
);
