-- The number of the migration of limits.
select 1;
