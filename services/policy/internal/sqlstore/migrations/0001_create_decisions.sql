-- Every decision, before its call may run. One for each call of a turn: asking
-- again answers the first. Times are Unix microseconds, lists are JSON.
create table policy_decisions (
	id text primary key,
	agent text not null,
	session text not null,
	run text not null,
	turn_id text not null,
	idx bigint not null,
	tool_name text not null,
	tool_args_hash text not null,
	by_kind text not null,
	by_address text not null,
	authority bigint not null,
	risk_level text not null,
	decision text not null,
	code text not null,
	reason text not null,
	rules_evaluated text not null,
	rules_triggered text not null,
	rules_version text not null,
	trace text not null,
	latency_us bigint not null,
	created_at bigint not null,
	unique (turn_id, idx)
);
create index policy_decisions_rate on policy_decisions (agent, tool_name, decision, created_at);
create index policy_decisions_time on policy_decisions (created_at);
