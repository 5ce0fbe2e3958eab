-- Transcripts that came from elsewhere: what was made of each part, and what was
-- cut out of it, as it came.
create table imports (
	run text primary key references runs(id),
	session text not null references sessions(id),
	answer text not null, -- JSON, given again to who imports the part again
	imported_at bigint not null
);
create index imports_session on imports (session);

create table import_cuts (
	run text not null references imports(run),
	idx bigint not null,
	line bigint not null, -- in its file
	reason text not null,
	content text not null,
	primary key (run, idx)
);
