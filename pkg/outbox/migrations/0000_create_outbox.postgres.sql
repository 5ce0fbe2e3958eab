-- What is committed and not yet published, in order.
create table outbox (
	seq bigint generated always as identity primary key,
	id text not null unique,
	subject text not null,
	payload text not null,
	traceparent text not null
);

-- The messages that were handled.
create table inbox (
	id text not null primary key,
	at bigint not null default ((extract(epoch from clock_timestamp()) * 1000000)::bigint)
);
create index inbox_at on inbox (at);
