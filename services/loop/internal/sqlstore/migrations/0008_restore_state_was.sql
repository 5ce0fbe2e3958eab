-- 0002 dropped what the release before it still reads: during an upgrade, and after
-- a rollback, its pods could do nothing. Nothing writes it any more.
alter table agents add column state_was text not null default '';
