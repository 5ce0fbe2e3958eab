-- Turns of runs that were accepted at or before forgotten_at do not become memories and are
-- not sent to a model, also when they are stored later.
alter table agents add column forgotten_at bigint not null default 0;
