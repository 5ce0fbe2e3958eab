-- Purchases of credits with USDC. A row is written before anything is signed; an agent has
-- at most one open purchase.
create table topups (
	id text not null primary key,
	agent text not null,
	usd bigint not null check (usd > 0),
	cause text not null,
	automatic bigint not null,
	state text not null,
	reason text not null,
	before bigint not null,
	after bigint not null,
	created_at bigint not null,
	ended_at bigint not null
);
create unique index topups_one_open on topups (agent) where state = 'open';
create index topups_agent on topups (agent, ended_at);

-- One row for each agent: it is locked while a purchase begins.
create table topup_agents (
	agent text not null primary key,
	changed bigint not null
);
