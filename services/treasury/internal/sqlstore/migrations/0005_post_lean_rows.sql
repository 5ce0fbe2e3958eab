-- A transaction is one row. Its lines are JSON in it, [["<account>",<amount>,<balance
-- afterwards>],…]; '' where they are rows of postings_v1, as the release before
-- writes them. other is a second agent whose money it moves, '' without one.
alter table journal add column lines text not null default '';
alter table journal add column other text not null default '';
create index journal_agent on journal (agent, seq);
create index journal_other on journal (other, seq) where other <> '';

-- only sqlite
-- The end of the chain is the last row of the journal. The release before reads and
-- writes both tables by their names, which are views now (ADR 14).
drop view transactions;
-- only postgres
-- The release before reads and writes the lines by the name of their table, which is a
-- view now (ADR 14). chain stays: its one row orders the writers.
-- both
alter table postings rename to postings_v1;
create view postings as
	select seq, line, account, amount, balance from postings_v1
	union all
-- only sqlite
	select j.seq, e.key, json_extract(e.value, '$[0]'), json_extract(e.value, '$[1]'), json_extract(e.value, '$[2]')
	from journal j, json_each(j.lines) e where j.lines <> '';
create trigger postings_insert instead of insert on postings begin
	insert into postings_v1 (seq, line, account, amount, balance) values (new.seq, new.line, new.account, new.amount, new.balance);
end;
alter table chain rename to chain_v1;
create view chain as
	select 1 as one, coalesce(max(seq), 0) as seq,
		coalesce((select hash from journal order by seq desc limit 1), '0000000000000000000000000000000000000000000000000000000000000000') as hash
	from journal;
create trigger chain_update instead of update on chain begin
	select 1;
end;

-- As in 0003, now of both kinds of rows.
create view transactions as
-- only postgres
	select j.seq, e.number - 1, e.line ->> 0, (e.line ->> 1)::bigint, (e.line ->> 2)::bigint
	from journal j cross join lateral
		jsonb_array_elements(case when j.lines = '' then '[]' else j.lines::jsonb end) with ordinality as e (line, number);
create function postings_insert() returns trigger language plpgsql as $$
begin
	insert into postings_v1 (seq, line, account, amount, balance) values (new.seq, new.line, new.account, new.amount, new.balance);
	return new;
end $$;
create trigger postings_insert instead of insert on postings for each row execute function postings_insert();

-- As in 0003, now of both kinds of rows.
create or replace view transactions as
-- both
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

-- Active holds are found by holds_due, the others of an agent by holds_turn.
drop index holds_agent;

-- How far readers have followed the ledger: seq is the last transaction that was
-- published, stream the message that it was published in, 0 before the first.
-- What was written until now is announced already.
create table cursors (
	name text not null primary key,
	seq bigint not null,
	stream bigint not null
);
insert into cursors (name, seq, stream) select 'posted', seq, 0 from chain;
