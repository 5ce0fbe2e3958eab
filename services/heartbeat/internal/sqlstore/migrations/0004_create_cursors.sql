-- How far the readers of streams are: everything up to the message with the sequence seq
-- has been applied. The stream took that message at the time at, in Unix microseconds.
-- seq 0: nothing was read.
create table cursors (
    name text   not null primary key,
    seq  bigint not null,
    at   bigint not null
);
