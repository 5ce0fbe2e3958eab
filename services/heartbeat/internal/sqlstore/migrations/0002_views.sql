-- What the seeds call these tables, with times as they write them.

create view heartbeat_schedule as
select agent, name as task_name, cron as cron_expression, 1 as enabled,
-- only sqlite
    case when last_at > 0 then strftime('%Y-%m-%dT%H:%M:%fZ', last_at / 1000000.0, 'unixepoch') end as last_run_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', next_at / 1000000.0, 'unixepoch') as next_run_at,
-- only postgres
    case when last_at > 0 then to_char(to_timestamp(last_at / 1000000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') end as last_run_at,
    to_char(to_timestamp(next_at / 1000000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as next_run_at,
-- both
    runs as run_count
from beats;

create view heartbeat_history as
select agent || '/' || cause as id, agent, name as task_name,
-- only sqlite
    strftime('%Y-%m-%dT%H:%M:%fZ', due / 1000000.0, 'unixepoch') as due_at,
    strftime('%Y-%m-%dT%H:%M:%fZ', at / 1000000.0, 'unixepoch') as started_at,
-- only postgres
    to_char(to_timestamp(due / 1000000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as due_at,
    to_char(to_timestamp(at / 1000000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as started_at,
-- both
    'success' as result, cause as idempotency_key
from ticks;
