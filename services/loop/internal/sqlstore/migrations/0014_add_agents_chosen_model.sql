-- The model that an agent has chosen, '' for that of its definition, and whether it has
-- entered low compute. A new definition clears both.
alter table agents add column chosen_model text not null default '';
alter table agents add column low_compute bigint not null default 0;
