-- What a turn's prompt was made of stands in the turn's own row. Older turns have it in
-- prompts, which releases before read and write.
alter table turns add column reference text not null default '';
alter table turns add column counted bigint not null default 0;
