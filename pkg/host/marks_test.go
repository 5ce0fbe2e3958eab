package host_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/sqldb"
)

// TestDisagreements checks the comparison of stores: exact positions after a crash of the
// process, settled ones if a power failure may have lost the last five minutes.
func TestDisagreements(t *testing.T) {
	t.Parallel()
	known, err := json.Marshal(map[string]any{
		"boot":    "b1",
		"latest":  map[string]any{"at": 9, "streams": map[string]uint64{"LOOP_EVT": 100}},
		"settled": map[string]any{"at": 1, "streams": map[string]uint64{"LOOP_EVT": 40}},
	})
	if err != nil {
		t.Fatal(err)
	}
	mark := func(seq int64) sqldb.Mark { return sqldb.Mark{ID: "i", Seq: seq, At: 9, Known: string(known)} }
	nats := api.StoreMark{Installation: "i", Seq: 20, At: 9, Boot: "b1", Settled: 10}
	stream := func(last uint64) []bus.StreamHeight {
		return []bus.StreamHeight{{Name: "LOOP_EVT", Installation: "i", Last: last}}
	}
	for _, tt := range []struct {
		name       string
		own        sqldb.Mark
		other      api.StoreMark
		states     []bus.StreamHeight
		id         string
		boot, sync string
		want       string // "": the stores agree
	}{
		{"all is there", mark(20), nats, stream(100), "i", "b1", host.SyncInterval, ""},
		{"more is there", mark(25), nats, stream(180), "i", "b1", host.SyncInterval, ""},
		{"a first start", sqldb.Mark{}, api.StoreMark{}, stream(0), "i", "b1", host.SyncInterval, ""},
		{"stores of an older release", sqldb.Mark{}, api.StoreMark{}, []bus.StreamHeight{{Name: "LOOP_EVT", Last: 7}}, "i", "b1", host.SyncInterval, ""},
		{"no database", sqldb.Mark{}, nats, stream(100), "i", "b1", host.SyncInterval, "empty or was recreated"},
		{"an older database", mark(19), nats, stream(100), "i", "b1", host.SyncInterval, "older copy"},
		{"a shorter stream", mark(20), nats, stream(99), "i", "b1", host.SyncInterval, "cut off"},
		{"no stream", mark(20), nats, stream(0), "i", "b1", host.SyncInterval, "missing or empty"},
		{"another installation", mark(20), nats, stream(100), "j", "b1", host.SyncInterval, "belongs to installation i"},

		{"after a power cut", mark(12), nats, stream(50), "i", "b2", host.SyncInterval, ""},
		{"after a power cut, too old a database", mark(9), nats, stream(50), "i", "b2", host.SyncInterval, "older copy"},
		{"after a power cut, too short a stream", mark(12), nats, stream(39), "i", "b2", host.SyncInterval, "cut off"},
		{"after a power cut, no database", sqldb.Mark{}, nats, stream(50), "i", "b2", host.SyncInterval, "empty or was recreated"},
		{"after a power cut with sync always", mark(19), nats, stream(100), "i", "b2", host.SyncAlways, "older copy"},
		{"on a machine that does not tell", mark(12), nats, stream(50), "i", "", host.SyncInterval, ""},
	} {
		got := strings.Join(host.Disagreements("loop", tt.own, tt.other, tt.states, tt.id, tt.boot, tt.sync), "\n")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		lost := tt.want != "" && tt.want != "cut off" && tt.want != "missing or empty"
		if host.LostDatabase(got) != lost {
			t.Errorf("%s: rows of the database may be missing: %t, want %t for %q", tt.name, !lost, lost, got)
		}
	}
}
