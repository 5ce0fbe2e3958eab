-- In which texts each word is, the latest first at one end of the index: to find the
-- latest texts that have a word costs the same however many have it. Triggers keep it,
-- so that what another release writes into memory_text is in it too.
create table memory_word (
	word text not null, -- as memory_text.body has it, with the mark of its scope
-- only sqlite
	doc integer not null,
	primary key (word, doc)
) without rowid;
insert into memory_word (word, doc) select distinct w.value, m.doc
	from memory_text m, json_each('["' || replace(trim(m.body), ' ', '","') || '"]') w where trim(m.body) <> '';
create trigger memory_word_insert after insert on memory_text when trim(new.body) <> '' begin
	insert into memory_word (word, doc) select distinct value, new.doc from json_each('["' || replace(trim(new.body), ' ', '","') || '"]');
end;
create trigger memory_word_delete after delete on memory_text when trim(old.body) <> '' begin
	delete from memory_word where doc = old.doc and word in (select value from json_each('["' || replace(trim(old.body), ' ', '","') || '"]'));
end;
create trigger memory_word_update after update of body on memory_text begin
	delete from memory_word where doc = old.doc and word in (select value from json_each('["' || replace(trim(old.body), ' ', '","') || '"]'));
	insert into memory_word (word, doc) select distinct value, new.doc from json_each('["' || replace(trim(new.body), ' ', '","') || '"]') where value <> '';
end;
-- only postgres
	doc bigint not null,
	primary key (word, doc)
);
create function memory_word_keep() returns trigger language plpgsql as $$
begin
	if tg_op <> 'INSERT' then
		delete from memory_word where doc = old.doc and word = any (string_to_array(trim(old.body), ' '));
	end if;
	if tg_op <> 'DELETE' then
		insert into memory_word (word, doc) select distinct w, new.doc from unnest(string_to_array(trim(new.body), ' ')) w where w <> '';
	end if;
	return null;
end
$$;
create trigger memory_word_write after insert or delete on memory_text for each row execute function memory_word_keep();
create trigger memory_word_update after update of body on memory_text for each row execute function memory_word_keep();
insert into memory_word (word, doc) select distinct w, m.doc from memory_text m, unnest(string_to_array(trim(m.body), ' ')) w where w <> '';
-- both

-- What is shown unasked, in its order.
create index working_memory_goals on working_memory (agent, priority desc, created_at desc) where kind = 'goal';
create index episodic_memory_order on episodic_memory (agent, created_at desc, id, session);
create index semantic_memory_order on semantic_memory (agent, confidence desc, updated_at desc, category, key);
create index procedural_memory_order on procedural_memory (agent, success_count desc, updated_at desc, name);
create index relationship_memory_order on relationship_memory (agent, trust desc, interaction_count desc, entity_address);
