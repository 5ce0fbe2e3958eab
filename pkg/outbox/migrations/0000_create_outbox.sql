-- What is committed and not yet published, in order.
create table outbox (
-- only sqlite
	seq integer primary key autoincrement,
-- only postgres
	seq bigint generated always as identity primary key,
-- both
	id text not null unique,
	subject text not null,
	payload text not null,
	traceparent text not null
);

-- The messages that were handled.
create table inbox (
	id text not null primary key,
-- only sqlite
	at bigint not null default (cast(unixepoch('subsec') * 1000000 as integer))
-- only postgres
	at bigint not null default ((extract(epoch from clock_timestamp()) * 1000000)::bigint)
-- both
);
create index inbox_at on inbox (at);
