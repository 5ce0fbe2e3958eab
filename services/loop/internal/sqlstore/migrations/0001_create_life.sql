-- Agents, sessions, runs, turns, tool calls and facts. Times are Unix
-- microseconds, money is micro-USD, JSON is text: one file serves both engines.
create table agents (
	id text primary key,
	name text not null,
	address text not null,
	source text not null,
	definition text not null,
	state text not null,
	state_reason text not null default '',
	state_was text not null default '', -- before it ran
	state_by text not null default '', -- run that made it run
	sleep_until bigint not null default 0,
	state_seq bigint not null default 1,
	version bigint not null default 1,
	turns bigint not null default 0,
	created_at bigint not null,
	updated_at bigint not null
);

create table sessions (
	id text primary key,
	agent text not null references agents(id),
	journal bigint not null default 0,
	runs bigint not null default 0,
	turns bigint not null default 0,
	input_tokens bigint not null default 0,
	output_tokens bigint not null default 0,
	cost bigint not null default 0,
	created_at bigint not null,
	updated_at bigint not null
);
create index sessions_agent on sessions (agent, updated_at);

create table runs (
	id text primary key,
	session text not null references sessions(id),
	agent text not null references agents(id),
	command text not null,
	input text not null,
	turns bigint not null default 0,
	cost bigint not null default 0,
	ending text,
	started_at bigint not null,
	ended_at bigint
);
create index runs_session on runs (session, started_at);

create table turns (
	id text primary key,
	run text not null references runs(id),
	number bigint not null,
	session text not null references sessions(id),
	agent text not null references agents(id),
	position bigint not null,
	state text not null,
	input text not null,
	input_source text not null,
	input_address text not null default '',
	thinking text not null,
	model text not null,
	provider text not null,
	finish text not null,
	input_tokens bigint not null,
	output_tokens bigint not null,
	cost bigint not null,
	trace text not null,
	started_at bigint not null,
	ended_at bigint not null,
	unique (run, number),
	unique (session, position)
);
create index turns_agent on turns (agent, started_at);

create table tool_calls (
	turn_id text not null references turns(id),
	idx bigint not null,
	provider_id text not null,
	name text not null,
	arguments text not null,
	decision text not null default '',
	action text not null default '',
	outcome text not null,
	result text not null default '',
	error text not null default '',
	duration_ms bigint not null default 0,
	primary key (turn_id, idx)
);

create table semantic_memory (
	agent text not null references agents(id),
	category text not null,
	key text not null,
	value text not null,
	confidence text not null,
	source text not null,
	created_at bigint not null,
	updated_at bigint not null,
	primary key (agent, category, key)
);
