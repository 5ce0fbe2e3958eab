-- The number of another migration.
select 1;
