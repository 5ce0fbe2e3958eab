-- The view of the attempts with the version of the prices by which each was paid. The
-- views over it are made again, because they depend on it.
drop view inference_spend_by_hour;
drop view inference_latency_by_task;
drop view inference_spend_by_model;
drop view inference_attempts;

create view inference_attempts as
select id, session_id, turn_id, model, provider, input_tokens, output_tokens,
	(cost + 9999) / 10000 as cost_cents, latency_ms, tier, task_type,
	case when cached_tokens > 0 then 1 else 0 end as cache_hit,
-- only sqlite
	strftime('%Y-%m-%d %H:%M:%S', at / 1000000, 'unixepoch') as created_at,
-- only postgres
	to_char(to_timestamp(at / 1000000) at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS') as created_at,
-- both
	agent, cost as cost_micros, cached_tokens, cache_write_tokens, reasoning_tokens, estimated, trace, outcome, price_version
from (
	select id, session_id, turn_id, model, provider, input_tokens, output_tokens, cost, latency_ms, tier, task_type, created_at as at,
		agent, cached_tokens, cache_write_tokens, reasoning_tokens, estimated, trace, 'answered' as outcome, price_version
	from inference_costs
	union all
	select call_id || '/failed/' || cast(at as text), session_id, turn_id, model, provider, input_tokens, output_tokens, cost, latency_ms, tier,
		task_type, at, agent, cached_tokens, cache_write_tokens, reasoning_tokens, estimated, trace, kind, price_version
	from failed_calls
) attempts;

create view inference_spend_by_model as
select model, cast(sum(cost_cents) as bigint) as total_cents, cast(sum(cost_micros) as bigint) as total_micros, count(*) as attempts
from inference_attempts group by model;

create view inference_latency_by_task as
select task_type, avg(latency_ms) as avg_latency_ms
from inference_attempts group by task_type;

create view inference_spend_by_hour as
select substr(created_at, 1, 13) || ':00' as hour, cast(sum(cost_cents) as bigint) as cents, cast(sum(cost_micros) as bigint) as micros
from inference_attempts group by substr(created_at, 1, 13);
