-- Counters and notices of sessions, fates and cancellations of runs, and every
-- change of an agent's state with its reason.
alter table agents drop column state_was;
alter table agents add column state_since bigint not null default 0;
alter table agents add column zero_since bigint not null default 0; -- credits are at nothing, 0: they are not

alter table sessions add column counters text not null default '{}';
alter table sessions add column notice text not null default ''; -- for the next turn
alter table sessions add column terminated_at bigint not null default 0;
alter table sessions add column terminated_reason text not null default '';

alter table runs add column fate text not null default '';

create table cancels (
	run text primary key,
	session text not null references sessions(id),
	reason text not null,
	at bigint not null
);

create table agent_history (
	agent text not null references agents(id),
	seq bigint not null,
	state text not null,
	previous text not null,
	reason text not null,
	sleep_until bigint not null,
	run text not null,
	at bigint not null,
	primary key (agent, seq)
);
