-- The registry of models. Each life cycle has rows of its own, so that a refresh of the
-- lists cannot change what a release or the operator has set. url is the list that has a
-- discovered model, '' for the others.
create table models (
	provider text not null,
	id text not null,
	lifecycle text not null,
	url text not null,
	context_window bigint not null,
	max_output bigint not null,
	tools bigint not null,
	vision bigint not null,
	token_param text not null,
	tier_minimum text not null,
	fallback bigint not null,
	not_chat bigint not null default 0,
	remote text not null default '',
	created_at bigint not null,
	updated_at bigint not null,
	vanished_at bigint not null default 0,
	primary key (provider, id, lifecycle, url)
);

-- Versions of prices in micro-USD for a million tokens. A row is never changed, except
-- that the operator's prices can be withdrawn.
create table model_prices (
	provider text not null,
	id text not null,
	version bigint not null,
	lifecycle text not null,
	url text not null,
	input_price bigint not null,
	output_price bigint not null,
	cached_price bigint not null,
	write_price bigint not null,
	reasoning_price bigint not null,
	valid_from bigint not null,
	created_at bigint not null,
	withdrawn_at bigint not null default 0,
	primary key (provider, id, version)
);

-- What is known of the list of a provider: read, or none.
create table model_lists (
	provider text not null,
	url text not null,
	state text not null,
	read_at bigint not null,
	primary key (provider, url)
);

-- One row. Each change of the registry increases its generation; the row is also the lock
-- of the changes.
create table model_registry (
	one bigint primary key,
	generation bigint not null
);
insert into model_registry (one, generation) values (1, 0);

-- The version of the prices by which an attempt was paid; 0 for attempts of the release
-- before and for prices of the settings.
alter table inference_costs add column price_version bigint not null default 0;
alter table failed_calls add column price_version bigint not null default 0;
