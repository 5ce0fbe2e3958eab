-- The idempotency keys that callers gave with messages and imports. A key is scoped
-- before it gets here: run is the id that the scope and the key give. The row is
-- written before the message is published, so that two callers with one key and
-- different contents cannot both be accepted.
create table request_keys (
	run text primary key,
	fingerprint text not null, -- SHA-256 of the request
	at bigint not null -- Unix microseconds; old rows are deleted
);
create index request_keys_at on request_keys (at);
