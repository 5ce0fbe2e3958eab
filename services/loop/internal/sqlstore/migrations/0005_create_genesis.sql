-- Genesis prompts that agents gave themselves, beside their definition. The one
-- with the highest number counts, as long as the definition it was made for is
-- the applied one: what a creator applies later comes before it. Times are Unix
-- microseconds.
create table genesis_prompts (
	agent text not null references agents(id),
	number bigint not null,
	version bigint not null, -- of the definition
	prompt text not null,
	previous text not null,
	reason text not null,
	call_key text not null,
	created_at bigint not null,
	primary key (agent, number),
	unique (agent, call_key)
);
