-- Every paid call with its answer: asking again under the same id is answered
-- from here and pays nothing. Times are Unix microseconds, costs micro-USD.
create table inference_costs (
	id text primary key,
	agent text not null,
	session_id text not null,
	turn_id text not null,
	model text not null,
	provider text not null,
	input_tokens bigint not null,
	output_tokens bigint not null,
	cost bigint not null,
	hold text not null,
	latency_ms bigint not null,
	tier text not null,
	task_type text not null,
	trace text not null,
	answer text not null,
	created_at bigint not null
);
create index inference_costs_hold on inference_costs (hold);
create index inference_costs_agent on inference_costs (agent, created_at);
