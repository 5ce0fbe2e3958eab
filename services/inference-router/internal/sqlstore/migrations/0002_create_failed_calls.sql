-- Attempts to call a provider that failed, one row each: what they cost, and how often
-- a call and a run have tried. A canceled attempt does not count as a try.
create table failed_calls (
	call_id text not null,
	at bigint not null,
	hold text not null,
	run_id text not null,
	agent text not null,
	turn_id text not null,
	model text not null,
	provider text not null,
	kind text not null,
	message text not null,
	counts bigint not null,
	input_tokens bigint not null,
	output_tokens bigint not null,
	cost bigint not null,
	primary key (call_id, at, hold)
);
create index failed_calls_run on failed_calls (run_id);
create index failed_calls_hold on failed_calls (hold);
create index failed_calls_agent on failed_calls (agent, at);
