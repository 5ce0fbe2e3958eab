-- When an agent was deleted; 0: it was not.
alter table agents add column deleted_at bigint not null default 0;
