-- Runs that mail of peers has started, by which its budgets are checked, and the
-- senders whose mail waits for a budget. An agent's sessions are named here once they
-- are not its first ones. Turns of a session up to reset_through are no longer sent to
-- a model.
create table mail_runs (
	run text primary key,
	agent text not null references agents(id),
	sender text not null, -- address in lower case
	at bigint not null,
	reserved bigint not null -- micro-USD that the run may cost; 0: any
);
create index mail_runs_agent on mail_runs (agent, at);

create table mail_held (
	agent text not null references agents(id),
	sender text not null,
	until bigint not null,
	primary key (agent, sender)
);

alter table agents add column main_session text not null default '';
alter table agents add column mail_session text not null default '';
alter table sessions add column reset_through bigint not null default 0;
