-- SHA-256 of a request over HTTP with an idempotency key, in hex: another request with the
-- same key is refused. '' for all other calls, and for those of the release before.
alter table inference_costs add column request text not null default '';
