-- Orders of agents at providers outside. A row is written before the order is sent.
create table orders (
	id text not null primary key,
	agent text not null,
	turn text not null,
	kind text not null,
	request text not null,
	price bigint not null check (price > 0),
	status text not null,
	answer text not null,
	paid bigint not null,
	created_at bigint not null
);
create index orders_open on orders (created_at) where paid = 0;

-- What agents own at providers.
create table things (
	kind text not null,
	id text not null,
	agent text not null,
	name text not null,
	created_at bigint not null,
	primary key (kind, id)
);
create index things_agent on things (agent, kind, created_at);

-- Addresses are looked up in any case.
create index wallets_by_address on wallets (lower(address));
