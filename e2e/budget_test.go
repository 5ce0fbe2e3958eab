package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
)

// budget is the maximum cost of a turn, on average over runs of two turns in 16
// concurrent sessions. docs/bench.md has the same table.
var budget = []struct { //nolint:gochecknoglobals // a table
	part  string
	limit float64
}{
	{"requests", 5},
	{"stored messages", 4},
	{"SQL statements", 25},
	{"write transactions", 3.5},
	{"allocations", 4000},
}

// costs maps the parts of the budget to the amounts that a process has used so far.
type costs map[string]float64

// TestTurnBudget fails when a turn costs more than its budget. It must not run in
// parallel with other tests, because allocations are counted for the whole process.
func TestTurnBudget(t *testing.T) { //nolint:paralleltest // see above
	sessions, more := 16, 1.0
	if raced {
		// Deferred work for many turns is counted if it falls into the time of the runs,
		// and under the race detector that time is many times as long. Two sessions seldom
		// share a commit: a turn without another one has 4.6 write transactions.
		sessions, more = 2, 2
	}
	l := newLoad(t, sessions, apptest.Options{})
	count := counting(t, l)
	l.run(16)
	const runs = 256
	before := count()
	l.run(runs)
	after := count()
	services := map[string]float64{}
	for _, b := range budget {
		got := (after[b.part] - before[b.part]) / (2 * runs)
		limit := b.limit * more
		t.Logf("%-20s %8.1f of %.1f", b.part, got, limit)
		if got > limit || got == 0 {
			t.Errorf("a turn costs %.1f %s, want at most %.1f", got, b.part, limit)
		}
	}
	for part := range after {
		if service, ok := strings.CutPrefix(part, "statements of "); ok {
			services[service] = (after[part] - before[part]) / (2 * runs)
		}
	}
	t.Logf("SQL statements by service: %v", services)
}

// counting returns a function that reads the amounts that the suite of l has used so far.
func counting(t testing.TB, l *load) func() costs {
	t.Helper()
	nc := bareNATS(t, l.w.own)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	requests, err := nc.SubscribeSync(api.Root + ".*.req.>")
	if err == nil {
		err = errors.Join(requests.SetPendingLimits(-1, -1), nc.Flush())
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() costs {
		s := costs{}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		s["allocations"] = float64(m.Mallocs)
		streams := js.ListStreams(t.Context())
		for info := range streams.Info() {
			s["stored messages"] += float64(info.State.LastSeq)
		}
		asked, _, err := requests.Pending()
		if err = errors.Join(err, streams.Err(), nc.Flush()); err != nil {
			t.Fatal(err)
		}
		s["requests"] = float64(asked)
		metrics, err := scrape(t.Context(), l.w.ops)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range metrics {
			switch v.name {
			case "anima_sql_statements_total":
				s["SQL statements"] += v.value
				s["statements of "+v.service] += v.value
			case "anima_sql_commits_total":
				s["write transactions"] += v.value
			}
		}
		return s
	}
}

// reading is one value of a metric of a service.
type reading struct {
	name, service string
	value         float64
}

var serviceLabel = regexp.MustCompile(`service="([^"]*)"`)

// scrape reads the metrics page of an ops port.
func scrape(ctx context.Context, ops string) ([]reading, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, ops+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	page, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	var all []reading
	for line := range strings.Lines(string(page)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(line, "#") {
			continue
		}
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		name, labels, _ := strings.Cut(strings.Join(fields[:len(fields)-1], " "), "{")
		if err != nil {
			continue
		}
		s := reading{name: name, value: value}
		if m := serviceLabel.FindStringSubmatch(labels); m != nil {
			s.service = m[1]
		}
		all = append(all, s)
	}
	if !slices.ContainsFunc(all, func(s reading) bool { return s.name == "anima_sql_statements_total" }) {
		return nil, fmt.Errorf("no anima_sql_statements_total in:\n%s", page)
	}
	return all, nil
}
