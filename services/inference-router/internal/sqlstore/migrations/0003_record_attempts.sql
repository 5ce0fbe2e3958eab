-- What an attempt used and how it was made, in the same columns for answers and for
-- failures. Rows of the release before have 0 and '' in them. The tokens of the cache
-- and of reasoning are parts of input_tokens and output_tokens. estimated is 1 if the
-- provider did not report the tokens.
alter table inference_costs add column cached_tokens bigint not null default 0;
alter table inference_costs add column cache_write_tokens bigint not null default 0;
alter table inference_costs add column reasoning_tokens bigint not null default 0;
alter table inference_costs add column estimated bigint not null default 0;

alter table failed_calls add column session_id text not null default '';
alter table failed_calls add column tier text not null default '';
alter table failed_calls add column task_type text not null default '';
alter table failed_calls add column trace text not null default '';
alter table failed_calls add column latency_ms bigint not null default 0;
alter table failed_calls add column cached_tokens bigint not null default 0;
alter table failed_calls add column cache_write_tokens bigint not null default 0;
alter table failed_calls add column reasoning_tokens bigint not null default 0;
alter table failed_calls add column estimated bigint not null default 0;

-- Every attempt with the columns of the seed's table inference_costs, in its units:
-- cents, rounded up for each row, and times as datetime('now') writes them. cost_micros
-- is exact.
create view inference_attempts as
select id, session_id, turn_id, model, provider, input_tokens, output_tokens,
	(cost + 9999) / 10000 as cost_cents, latency_ms, tier, task_type,
	case when cached_tokens > 0 then 1 else 0 end as cache_hit,
-- only sqlite
	strftime('%Y-%m-%d %H:%M:%S', at / 1000000, 'unixepoch') as created_at,
-- only postgres
	to_char(to_timestamp(at / 1000000) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') as created_at,
-- both
	agent, cost as cost_micros, cached_tokens, cache_write_tokens, reasoning_tokens, estimated, trace, outcome
from (
	select id, session_id, turn_id, model, provider, input_tokens, output_tokens, cost, latency_ms, tier, task_type, created_at as at,
		agent, cached_tokens, cache_write_tokens, reasoning_tokens, estimated, trace, 'answered' as outcome
	from inference_costs
	union all
	select call_id || '/failed/' || cast(at as text), session_id, turn_id, model, provider, input_tokens, output_tokens, cost, latency_ms, tier,
		task_type, at, agent, cached_tokens, cache_write_tokens, reasoning_tokens, estimated, trace, kind
	from failed_calls
) attempts;

-- The seed's three queries over them.
create view inference_spend_by_model as
select model, cast(sum(cost_cents) as bigint) as total_cents, cast(sum(cost_micros) as bigint) as total_micros, count(*) as attempts
from inference_attempts group by model;

create view inference_latency_by_task as
select task_type, avg(latency_ms) as avg_latency_ms
from inference_attempts group by task_type;

create view inference_spend_by_hour as
select substr(created_at, 1, 13) || ':00' as hour, cast(sum(cost_cents) as bigint) as cents, cast(sum(cost_micros) as bigint) as micros
from inference_attempts group by substr(created_at, 1, 13);
