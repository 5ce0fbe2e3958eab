-- The limits of agents, and the sums by which they are decided (ADR 21). meter holds
-- the payments of the last day, encoded; limits is JSON, '' where none are set.
alter table accounts add column meter text not null default '';
alter table accounts add column limits text not null default '';

-- Which sums count a hold; '' for none.
alter table holds add column counted text not null default '';

-- The sums of turns, sessions and payees that are limited, encoded.
create table tallies (
	id text not null primary key,
	data text not null
);

-- Requests of agents for payments that need an approval.
create table approvals (
	id text not null primary key,
	agent text not null,
	amount bigint not null,
	category text not null,
	payee text not null,
	domain text not null,
	asset text not null,
	status text not null,
	hold text not null,
	asked_at bigint not null,
	ends_at bigint not null
);
create index approvals_status on approvals (status, asked_at);
