-- The books under the names and in the units of the seeds: whole cents (cut, not
-- rounded; the micros stand beside them) and ISO times in UTC. Only what changes
-- what an agent owns is a transaction here; a hold does not.
create view transactions as
select
	t.id || case when t.owner = t.agent then '' else '/in' end as id,
	t.owner as agent,
	case
		when t.kind = 'deposit' then 'credit_purchase'
		when t.owner <> t.agent then 'transfer_in'
		when t.kind = 'transfer' or h.category = 'transfer' then 'transfer_out'
		when h.category = 'inference' then 'inference'
		else 'tool_use'
	end as type,
	t.amount / 10000 as amount_cents,
	t.amount as amount_micros,
	t.balance / 10000 as balance_after_cents,
	t.memo as description,
	t.turn as turn_id,
-- only sqlite
	strftime('%Y-%m-%dT%H:%M:%SZ', t.at / 1000000, 'unixepoch') as created_at
-- only postgres
	to_char(to_timestamp(t.at / 1000000) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as created_at
-- both
from (
	select
		j.id, j.kind, j.agent, j.memo, j.turn, j.at,
		replace(replace(p.account, 'agent:', ''), 'held:', '') as owner,
		cast(sum(p.amount) as bigint) as amount,
		max(case when p.account like 'agent:%' then p.balance end) as balance
	from journal j join postings p on p.seq = j.seq
	where p.account like 'agent:%' or p.account like 'held:%'
	group by j.id, j.kind, j.agent, j.memo, j.turn, j.at, owner
) t
left join holds h on h.id = case when t.kind = 'settle' then substr(t.id, 1, length(t.id) - length('/settle')) end
where t.amount <> 0;

create view spend_tracking as
select
	h.id as id,
	h.category as tool_name,
	h.settled / 10000 as amount_cents,
	h.settled as amount_micros,
	h.payee as recipient,
	cast(null as text) as domain,
	case when h.category in ('transfer', 'x402', 'inference') then h.category else 'other' end as category,
-- only sqlite
	strftime('%Y-%m-%dT%H', h.ended_at / 1000000, 'unixepoch') as window_hour,
	strftime('%Y-%m-%d', h.ended_at / 1000000, 'unixepoch') as window_day,
	strftime('%Y-%m-%dT%H:%M:%SZ', h.ended_at / 1000000, 'unixepoch') as created_at,
-- only postgres
	to_char(to_timestamp(h.ended_at / 1000000) at time zone 'UTC', 'YYYY-MM-DD"T"HH24') as window_hour,
	to_char(to_timestamp(h.ended_at / 1000000) at time zone 'UTC', 'YYYY-MM-DD') as window_day,
	to_char(to_timestamp(h.ended_at / 1000000) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') as created_at,
-- both
	h.agent as agent,
	h.turn as turn_id
from holds h
where h.status = 'settled';
