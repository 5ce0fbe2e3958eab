-- Goals with their plans, tasks and attempts, and what happened to them. The phase
-- of a goal is stored nowhere: it derives from these rows.
create table goals (
	id text primary key,
	agent text not null references agents(id),
	title text not null,
	description text not null,
	strategy text not null default '',
	status text not null,
	reason text not null default '',
	by_kind text not null,
	by_address text not null default '',
	steps bigint not null default 0, -- estimated, 0: not yet
	version bigint not null default 0, -- of the last plan, 0: there is none
	replans bigint not null default 0,
	cost_limit bigint not null, -- of a plan that needs no creator, micro-USD
	overhead bigint not null default 0, -- spent on classifying and planning, micro-USD
	seq bigint not null default 1,
	created_at bigint not null,
	updated_at bigint not null,
	completed_at bigint not null default 0
);
create index goals_agent on goals (agent, created_at);
create unique index goals_one_active on goals (agent) where status = 'active';

create table plans (
	goal_id text not null references goals(id),
	version bigint not null,
	status text not null,
	source text not null,
	draft text not null, -- as the planner gave it, JSON
	estimated_cost bigint not null,
	decision text not null default '',
	feedback text not null default '',
	created_at bigint not null,
	primary key (goal_id, version)
);

create table task_graph (
	id text primary key,
	goal_id text not null references goals(id),
	version bigint not null, -- of the plan that it belongs to
	number bigint not null, -- within the version, from 1
	parent_id text not null default '',
	title text not null,
	description text not null,
	status text not null,
	assigned_to text not null,
	agent_role text not null,
	priority bigint not null,
	dependencies text not null,
	estimated_cost bigint not null,
	timeout_ms bigint not null,
	max_retries bigint not null,
	retry_count bigint not null default 0,
	attempt bigint not null default 0,
	lease text not null default '', -- run of the last attempt
	deadline bigint not null default 0, -- of the lease that is held, 0: none is
	result text not null default '',
	artifacts text not null default '',
	error text not null default '',
	created_at bigint not null,
	started_at bigint not null default 0,
	completed_at bigint not null default 0,
	unique (goal_id, version, number)
);
create index task_graph_deadline on task_graph (deadline) where deadline > 0;

create table task_attempts (
	run text primary key,
	goal_id text not null references goals(id),
	task_id text not null references task_graph(id),
	number bigint not null,
	cost bigint not null default 0,
	started_at bigint not null,
	ended_at bigint not null default 0,
	stopped_at bigint not null default 0,
	unique (task_id, number)
);
create index task_attempts_goal on task_attempts (goal_id);

create table event_stream (
	id text primary key,
	type text not null,
	agent text not null references agents(id),
	goal_id text not null default '',
	task_id text not null default '',
	content text not null, -- the event, JSON
	token_count bigint not null,
	compacted_to text not null default '',
	created_at bigint not null
);
create index event_stream_agent on event_stream (agent, created_at);
create index event_stream_goal on event_stream (goal_id, created_at);
create index event_stream_type on event_stream (type, created_at);
