-- What the limits of an agent depend on (docs/limits.md): the session and the principal
-- of the turn that pays, and the facilitator of a payment as its seller names it, ''
-- where they are not known.
alter table payments add column session text not null default '';
alter table payments add column principal text not null default '';
alter table payments add column facilitator text not null default '';
alter table orders add column session text not null default '';
alter table orders add column principal text not null default '';

-- The last block in which a settlement was seen, 0 before and for the settlements of
-- earlier releases. It is compared with the chain until it is final. reopened is how
-- often a reorganization of the chain has removed a settlement.
alter table payments add column block bigint not null default 0;
alter table payments add column block_hash text not null default '';
alter table payments add column reopened bigint not null default 0;

-- Rows of which nothing is left to do are removed by their age.
create index payments_ended on payments (updated_at) where next_at = 0;
create index uses_ended on uses (updated_at) where state <> 'paid';
create index settlements_ended on settlements (updated_at) where state <> 'pending';
