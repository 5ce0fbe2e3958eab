-- Payments over HTTP 402. Amounts are micro-USD, which are the atomic units of the token;
-- times are Unix microseconds, but the window of an authorization has seconds, as it is
-- signed.

-- What agents buy. request is the hash of the request, header and value the
-- authorization as it is sent: it is stored before the first send, and sent unchanged
-- again. next_at is when the payment is reconciled, 0 if nothing is left to do; posted
-- is 1 when its hold has ended.
create table payments (
	id text not null primary key,
	agent text not null,
	turn text not null,
	request text not null,
	method text not null,
	url text not null,
	state text not null,
	network text not null,
	payee text not null,
	amount bigint not null,
	payer text not null,
	nonce text not null,
	valid_after bigint not null,
	valid_before bigint not null,
	offer text not null,
	header text not null,
	value text not null,
	tx text not null,
	reason text not null,
	status bigint not null,
	content_type text not null,
	body text not null,
	cut bigint not null,
	posted bigint not null,
	busy_until bigint not null,
	next_at bigint not null,
	attempts bigint not null,
	created_at bigint not null,
	updated_at bigint not null,
	parent text not null
);
create index payments_agent on payments (agent, created_at);
create index payments_due on payments (next_at) where next_at > 0;

-- What others buy here: one row for each payment that was presented, by network, payer
-- and nonce. The row is inserted before anything is done for the payment.
create table uses (
	id text not null primary key,
	payer text not null,
	identifier text not null,
	resource text not null,
	fingerprint text not null,
	state text not null,
	until bigint not null,
	tx text not null,
	status bigint not null,
	headers text not null,
	body text not null,
	created_at bigint not null,
	updated_at bigint not null
);
create unique index uses_identifier on uses (payer, identifier) where identifier <> '';

-- What the facilitator submits, by network, payer and nonce.
create table settlements (
	id text not null primary key,
	fingerprint text not null,
	state text not null,
	until bigint not null,
	receipt text not null,
	created_at bigint not null,
	updated_at bigint not null
);
