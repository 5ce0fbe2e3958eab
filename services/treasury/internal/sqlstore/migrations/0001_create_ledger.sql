-- The end of the hash chain. Its one row is locked by every writer first, so
-- that replicas write one after another.
create table chain (
	one bigint not null primary key check (one = 1),
	seq bigint not null,
	hash text not null
);
insert into chain (one, seq, hash) values (1, 0, '0000000000000000000000000000000000000000000000000000000000000000');

-- Running balances, in micro-USD. The rules live in the program; the check is
-- there for hands.
create table accounts (
	id text not null primary key,
	balance bigint not null,
	entries bigint not null,
	constraint accounts_no_debt check (balance >= 0 or (id not like 'agent:%' and id not like 'held:%'))
);

-- Transactions. Rows are only ever added.
create table journal (
	seq bigint not null primary key,
	id text not null unique,
	kind text not null,
	agent text not null,
	memo text not null,
	turn text not null,
	trace text not null,
	at bigint not null,
	previous text not null,
	hash text not null
);

-- The lines of transactions; balance is that of the account afterwards.
create table postings (
	seq bigint not null references journal (seq),
	line bigint not null,
	account text not null,
	amount bigint not null,
	balance bigint not null,
	primary key (seq, line)
);
create index postings_account on postings (account, seq);

create table holds (
	id text not null primary key,
	agent text not null,
	category text not null,
	turn text not null,
	amount bigint not null check (amount > 0),
	settled bigint not null check (settled >= 0 and settled <= amount),
	payee text not null,
	status text not null,
	created_at bigint not null,
	expires_at bigint not null,
	ended_at bigint not null,
	parent text not null
);
create index holds_due on holds (expires_at) where status = 'active';
create index holds_agent on holds (agent, status, created_at);
