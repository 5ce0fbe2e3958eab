-- The latest sign of life that each agent gave of itself, in Unix microseconds.
create table pings (
    agent text   not null primary key,
    at    bigint not null
);
