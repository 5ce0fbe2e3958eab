-- Stands for a migration of another part; it is dropped when that arrives.
select 1;
