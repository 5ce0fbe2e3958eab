package sqldb

import "testing"

func TestSummarize(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"":                    "",
		"-- ping":             "",
		"/* only a comment":   "",
		"'":                   "",
		"12":                  "",
		"select 1":            "SELECT",
		"commit":              "COMMIT",
		"pragma foreign_keys": "PRAGMA",
		"-- why\nselect a from turns where id = $1":                                                 "SELECT turns",
		"SELECT a.balance, h.x FROM accounts a JOIN accounts h ON h.id = $2":                        "SELECT accounts",
		"select extract(epoch from now()), x is distinct from y from beats":                         "SELECT beats",
		"select (select count(*) from mail) from directory":                                         "SELECT directory",
		"select count(*) from (select id from holds) h":                                             "SELECT holds",
		"select 1 where exists (select 1 from things where x = 'from secrets')":                     "SELECT things",
		"select value from json_each($1)":                                                           "SELECT",
		"(select a from x) union (select a from y)":                                                 "SELECT x",
		`select count(*) from "odd table"`:                                                          "SELECT odd table",
		`select 1 from public.accounts`:                                                             "SELECT accounts",
		`select 1 from "s"."t" where x = 'it''s from here'`:                                         "SELECT t",
		"insert into outbox (id) values ($1) on conflict (id) do nothing":                           "INSERT outbox",
		"insert or ignore into outbox (id) values ('a')":                                            "INSERT outbox",
		"insert into holds select 'eve', agent from old":                                            "INSERT holds",
		"update accounts set balance = 1":                                                           "UPDATE accounts",
		"update or ignore accounts set balance = 1":                                                 "UPDATE accounts",
		"update only accounts set balance = 1":                                                      "UPDATE accounts",
		"delete from only turns where 1 = 1":                                                        "DELETE turns",
		"create table if not exists schema_migrations (a text)":                                     "CREATE schema_migrations",
		"create index i on t (a)":                                                                   "CREATE",
		"with due as (select id from holds where x < $1), more (a) as (select 1) select * from due": "SELECT holds",
		"with recursive up as (select 1) delete from turns where id in (select id from up)":         "DELETE turns",
		"with x as materialized (select a from b) insert into c select a from x":                    "INSERT c",
		"with":                                "WITH",
		"update":                              "UPDATE",
		"select ) from (":                     "SELECT",
		"insert into t values ('a); --', $1)": "INSERT t",
	} {
		operation, table := summarize(query)
		got := operation
		if table != "" {
			got += " " + table
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", query, got, want)
		}
	}
}

func FuzzSummarize(f *testing.F) {
	f.Add("with a as (select 1 from b) select * from a")
	f.Add(`select "a" from 'b' -- c`)
	f.Fuzz(func(_ *testing.T, query string) { summarize(query) })
}
