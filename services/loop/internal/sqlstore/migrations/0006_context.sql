-- What prompts are made of: texts under their SHA-256, what each turn's prompt was
-- made of, and the summaries that stand for old turns.
create table blobs (
	hash text primary key,
	text text not null
);

create table prompts (
	turn_id text primary key references turns(id),
	reference text not null, -- JSON
	counted bigint not null -- tokens, before the correction
);

create table compactions (
	session text not null references sessions(id),
	through bigint not null, -- position of the last turn that the summary covers
	summary text not null references blobs(hash),
	turn_id text not null, -- for whose prompt it was made
	stage bigint not null,
	cost bigint not null,
	tokens_before bigint not null,
	tokens_after bigint not null,
	created_at bigint not null,
	primary key (session, through)
);
