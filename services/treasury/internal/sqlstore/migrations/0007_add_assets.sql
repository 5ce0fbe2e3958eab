-- The asset of a hold, '' for credits. The asset of an account follows from its name.
alter table holds add column asset text not null default '';
