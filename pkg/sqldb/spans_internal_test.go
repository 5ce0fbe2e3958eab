package sqldb

import (
	"context"
	"strings"
	"testing"

	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// TestSpansAreFreeWhenNothingIsRecorded is not parallel, because AllocsPerRun counts the
// allocations of the whole process.
func TestSpansAreFreeWhenNothingIsRecorded(t *testing.T) {
	provider := noop.NewTracerProvider()
	s := newSpans(Options{TracerProvider: provider, StatementSpans: true}, semconv.DBSystemNamePostgreSQL, "loop")
	ctx := trace.ContextWithRemoteSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: trace.FlagsSampled, Remote: true,
	}))
	for name, ctx := range map[string]context.Context{"no span": t.Context(), "remote span": ctx} {
		got := testing.AllocsPerRun(100, func() {
			finish(ctx, s.start(ctx, "select 1 from accounts"), nil)
			finish(ctx, (*spans)(nil).start(ctx, "select 1 from accounts"), nil)
			_ = s.transaction(ctx, nil, func(func(*Tx) error) error { return nil })
		})
		if got != 0 {
			t.Errorf("%s: %v allocations, want none", name, got)
		}
	}
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]string{
		"":                                 "",
		"-- why\nselect 1 from turns":      "SQL",
		"'a' from turns":                   "SQL",
		"select 1":                         "SELECT",
		"select 1 from":                    "SELECT",
		"select 1\nfrom turns where x = 1": "SELECT turns",
		"select count(*) from (select id from holds) h":                   "SELECT",
		"select extract(epoch from now()), x from beats":                  "SELECT",
		`select count(*) from "odd table"`:                                "SELECT",
		"select 1 from public.accounts, b":                                "SELECT public.accounts",
		"with big as (select id from accounts) select id from big":        "WITH accounts",
		"insert into outbox(id) values ($1) on conflict (id) do nothing":  "INSERT outbox",
		"INSERT OR IGNORE INTO outbox (id) VALUES ('a')":                  "INSERT outbox",
		"update accounts set balance = 1":                                 "UPDATE accounts",
		"delete from outbox where seq in ($1, $2)":                        "DELETE outbox",
		"create table if not exists losses (at bigint not null)":          "CREATE",
		"insert into 'hunter2' values ($1)":                               "INSERT",
		"select name from identity; update identity set name = 'hunter2'": "SELECT identity",
	} {
		operation, table := summarize(query)
		if got := strings.TrimSpace(operation + " " + table); got != want {
			t.Errorf("%s: got %q, want %q", query, got, want)
		}
	}
}
