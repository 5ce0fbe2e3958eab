-- The asset of a hold, '' for credits. The asset of an account follows from its name:
-- those of USDC begin with usdc: or usdc-.
alter table holds add column asset text not null default '';

-- The sums of the lines of a transaction in each asset, as its writer computed them. The
-- constraints refuse a transaction that creates or destroys money. The lines themselves
-- are JSON: a constraint that reads them costs a hold and its settlement 16 percent on
-- SQLite and 20 on PostgreSQL, these columns less than 2 (ADR 22). The verification adds
-- the lines up.
alter table journal add column credits_sum bigint not null default 0 constraint journal_credits_sum check (credits_sum = 0);
alter table journal add column usdc_sum bigint not null default 0 constraint journal_usdc_sum check (usdc_sum = 0);

-- Rows of the journal are only added. The verification finds what somebody changes who
-- can also drop these triggers.
-- only sqlite
create trigger journal_no_update before update on journal begin
	select raise(abort, 'a transaction of the ledger never changes');
end;
create trigger journal_no_delete before delete on journal begin
	select raise(abort, 'a transaction of the ledger is never removed');
end;
create trigger postings_no_update before update on postings_v1 begin
	select raise(abort, 'a transaction of the ledger never changes');
end;
create trigger postings_no_delete before delete on postings_v1 begin
	select raise(abort, 'a transaction of the ledger is never removed');
end;
alter table accounts add column asset text generated always as (case when substr(id, 1, 5) in ('usdc:', 'usdc-') then 'usdc' else '' end) virtual
	constraint accounts_no_debt_of_usdc check (balance >= 0 or id not like 'usdc:%' and id not like 'usdc-held:%');
-- only postgres
create function journal_append_only() returns trigger language plpgsql as $$
begin
	raise check_violation using message = 'a transaction of the ledger is never changed or removed';
end $$;
create trigger journal_append_only before update or delete or truncate on journal for each statement execute function journal_append_only();
create trigger postings_append_only before update or delete or truncate on postings_v1 for each statement execute function journal_append_only();
alter table accounts add column asset text not null generated always as (case when left(id, 5) in ('usdc:', 'usdc-') then 'usdc' else '' end) stored
	constraint accounts_no_debt_of_usdc check (balance >= 0 or id not like 'usdc:%' and id not like 'usdc-held:%');
-- both

-- As in 0005, with the purchases and reversals of credits. USDC are not in it: the seeds
-- have no transactions in them.
drop view transactions;
create view transactions as
select
	t.id || case when t.owner = t.agent then '' else '/in' end as id,
	t.owner as agent,
	case
		when t.kind in ('deposit', 'purchase') then 'credit_purchase'
		when t.kind = 'reversal' then 'reversal'
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
