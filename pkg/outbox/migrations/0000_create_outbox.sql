-- What is committed and not yet published, in order.
create table outbox (
	seq integer primary key autoincrement,
	id text not null unique,
	subject text not null,
	payload text not null,
	traceparent text not null
);

-- The messages that were handled.
create table inbox (
	id text not null primary key,
	at bigint not null default (cast(unixepoch('subsec') * 1000000 as integer))
);
create index inbox_at on inbox (at);
