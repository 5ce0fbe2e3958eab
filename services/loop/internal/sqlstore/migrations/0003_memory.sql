-- What agents remember (spec-core-4 §7.1, spec-core-5 §9). Every row says who is
-- behind it: origin and origin_address are the principal of the turn that it was
-- learnt in. Priority, importance and trust are per mille.
create table working_memory (
	agent text not null references agents(id),
	id text not null,
	session text not null,
	kind text not null,
	content text not null,
	priority bigint not null default 500,
	tokens bigint not null default 0,
	turn text not null default '',
	origin text not null,
	origin_address text not null default '',
	expires_at bigint not null default 0, -- 0: never
	created_at bigint not null,
	primary key (agent, id)
);
create index working_memory_session on working_memory (agent, session, priority);

create table episodic_memory (
	agent text not null references agents(id),
	id text not null, -- of the turn, or of what else happened
	session text not null,
	event_type text not null,
	summary text not null,
	detail text not null default '',
	outcome text not null,
	importance bigint not null default 500,
	class text not null,
	tokens bigint not null default 0,
	origin text not null,
	origin_address text not null default '',
	created_at bigint not null,
	primary key (agent, id)
);
create index episodic_memory_age on episodic_memory (agent, created_at);

create table session_summaries (
	session text primary key references sessions(id),
	agent text not null references agents(id),
	summary text not null default '',
	key_decisions text not null default '[]',
	tools_used text not null default '[]',
	outcomes text not null default '{}',
	turns bigint not null default 0,
	tokens bigint not null default 0,
	cost bigint not null default 0,
	created_at bigint not null,
	updated_at bigint not null
);
create index session_summaries_agent on session_summaries (agent, updated_at);

alter table semantic_memory add column origin text not null default 'self';
alter table semantic_memory add column origin_address text not null default '';
alter table semantic_memory add column turn text not null default '';
alter table semantic_memory add column version bigint not null default 1; -- of the value
alter table semantic_memory add column versions bigint not null default 1; -- numbers given so far
alter table semantic_memory add column verified_at bigint not null default 0; -- last time it was learnt again; 0: never
alter table semantic_memory add column expires_at bigint not null default 0;
create unique index semantic_memory_id on semantic_memory (agent, (category || '/' || key));

-- What a fact was before, and what was claimed against it.
create table semantic_history (
	agent text not null references agents(id),
	category text not null,
	key text not null,
	version bigint not null,
	value text not null,
	confidence text not null,
	source text not null,
	origin text not null,
	origin_address text not null default '',
	turn text not null default '',
	fate text not null, -- superseded, refused, forgotten, expired, crowded_out
	observed_at bigint not null,
	ended_at bigint not null,
	primary key (agent, category, key, version)
);

create table procedural_memory (
	agent text not null references agents(id),
	name text not null,
	description text not null,
	steps text not null, -- JSON list of texts
	success_count bigint not null default 0,
	failure_count bigint not null default 0,
	last_used_at bigint not null default 0,
	origin text not null,
	origin_address text not null default '',
	created_at bigint not null,
	updated_at bigint not null,
	primary key (agent, name)
);

create table relationship_memory (
	agent text not null references agents(id),
	entity_address text not null, -- in lower case
	entity_name text not null default '',
	relationship_type text not null,
	trust bigint not null default 500,
	interaction_count bigint not null default 0,
	last_interaction_at bigint not null default 0,
	notes text not null default '',
	origin text not null,
	origin_address text not null default '',
	created_at bigint not null,
	updated_at bigint not null,
	primary key (agent, entity_address)
);

create table soul_history (
	agent text not null references agents(id),
	version bigint not null,
	id text not null, -- of the change: the same change again is one version
	content text not null,
	content_hash text not null,
	change_source text not null,
	change_reason text not null default '',
	approved_by text not null default '',
	created_at bigint not null,
	primary key (agent, version),
	unique (agent, id)
);

-- The last turn of each session that is in memory.
create table memory_progress (
	session text primary key references sessions(id),
	position bigint not null
);

-- The words of what can be searched, next to the tables that they are of. From
-- here on the engines differ. Scope is agent and tier; each word begins with a mark
-- of its scope, so that the index itself keeps agents apart.
create table memory_text (
	doc integer primary key,
	scope text not null,
	id text not null,
	body text not null,
	accessed bigint not null default 0,
	accessed_at bigint not null default 0,
	unique (scope, id)
);
create virtual table memory_index using fts5(body, content = 'memory_text', content_rowid = 'doc', tokenize = 'unicode61');
create trigger memory_text_insert after insert on memory_text begin
	insert into memory_index (rowid, body) values (new.doc, new.body);
end;
create trigger memory_text_delete after delete on memory_text begin
	insert into memory_index (memory_index, rowid, body) values ('delete', old.doc, old.body);
end;
create trigger memory_text_update after update of body on memory_text begin
	insert into memory_index (memory_index, rowid, body) values ('delete', old.doc, old.body);
	insert into memory_index (rowid, body) values (new.doc, new.body);
end;
