-- Times are Unix microseconds, UTC; 0 is never.

create table agents (
    id         text   not null primary key,
    address    text   not null,
    state      text   not null,
    seq        bigint not null,
    changed_at bigint not null
);

create table beats (
    agent   text   not null,
    name    text   not null,
    cron    text   not null,
    reason  text   not null,
    next_at bigint not null,
    last_at bigint not null,
    runs    bigint not null,
    primary key (agent, name)
);
create index beats_next on beats (next_at);

-- The latest alarm of each agent. One that is done stays, so that setting it
-- again, after a crash, is known to be the same.
create table alarms (
    agent  text   not null primary key,
    id     text   not null,
    at     bigint not null,
    reason text   not null,
    set_at bigint not null,
    done   bigint not null
);
create index alarms_at on alarms (at) where done = 0;

create table ticks (
    agent text   not null,
    cause text   not null,
    name  text   not null,
    due   bigint not null,
    at    bigint not null,
    primary key (agent, cause)
);
create index ticks_at on ticks (at);
create index ticks_agent on ticks (agent, at);
