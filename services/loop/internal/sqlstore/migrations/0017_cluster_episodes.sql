-- only sqlite
-- Rows in the order of their key. The id of an episode begins with its time (ADR 26), so the
-- latest episodes of an agent, which a recall reads, are on few pages. The columns stay.
create table episodic_memory_clustered (
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
) without rowid;
insert into episodic_memory_clustered (agent, id, session, event_type, summary, detail, outcome, importance, class, tokens, origin, origin_address, created_at)
	select agent, id, session, event_type, summary, detail, outcome, importance, class, tokens, origin, origin_address, created_at
	from episodic_memory order by agent, id;
drop table episodic_memory;
alter table episodic_memory_clustered rename to episodic_memory;
create index episodic_memory_order on episodic_memory (agent, created_at desc, id, session);
-- only postgres
-- episodic_memory_order begins with the same columns.
drop index episodic_memory_age;
-- both
