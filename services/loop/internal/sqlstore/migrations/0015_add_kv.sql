-- What the seeds keep in their table kv, for each agent, with the names and the times as
-- they write them, and the definitions of the agents as they were last applied. The
-- remaining keys of the seeds have no equal here; docs/reference/loop.md lists where their
-- contents are.
create view kv as
select agent, key, value,
-- only sqlite
	strftime('%Y-%m-%dT%H:%M:%fZ', changed / 1000000.0, 'unixepoch') as updated_at
-- only postgres
	to_char(to_timestamp(changed / 1000000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as updated_at
-- both
from (
	select id as agent, 'agent_state' as key, state as value, state_since as changed from agents where deleted_at = 0
	union all
	select id, 'sleep_reason', state_reason, state_since from agents where deleted_at = 0 and state = 'sleeping'
	union all
	select id, t.key,
-- only sqlite
		strftime('%Y-%m-%dT%H:%M:%fZ', t.at / 1000000.0, 'unixepoch'), t.at
-- only postgres
		to_char(to_timestamp(t.at / 1000000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'), t.at
-- both
	from (
		select id, 'start_time' as key, created_at as at from agents where deleted_at = 0
		union all
		select id, 'sleep_until', sleep_until from agents where deleted_at = 0 and sleep_until > 0
		union all
		select id, 'zero_credits_since', zero_since from agents where deleted_at = 0 and zero_since > 0
		union all
		select r.agent, 'last_run', max(r.ended_at) from runs r join agents a on a.id = r.agent
		where a.deleted_at = 0 and r.ended_at is not null group by r.agent
	) t
) k;

create view config_snapshots as
select id as agent, version, source, definition,
-- only sqlite
	strftime('%Y-%m-%dT%H:%M:%fZ', updated_at / 1000000.0, 'unixepoch') as updated_at
-- only postgres
	to_char(to_timestamp(updated_at / 1000000.0) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as updated_at
-- both
from agents where deleted_at = 0;
