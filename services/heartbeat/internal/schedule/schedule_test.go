package schedule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/services/heartbeat/internal/schedule"
)

func day(hour, minute, second int) time.Time {
	return time.Date(2026, 3, 2, hour, minute, second, 0, time.UTC)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	got, faults := schedule.Check("lucky", []schedule.Entry{
		{Name: "morning", Cron: "0  8 * *   MON-FRI", Reason: "news"},
		{Name: "often", Cron: "*/5 * * * *", Runs: 7, Last: day(1, 0, 0)},
	}, day(8, 0, 0))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	want := []schedule.Entry{
		{Agent: "lucky", Name: "morning", Cron: "0 8 * * MON-FRI", Reason: "news", Next: day(8, 0, 0).AddDate(0, 0, 1)},
		{Agent: "lucky", Name: "often", Cron: "*/5 * * * *", Next: day(8, 5, 0)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestCheckNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, faults := schedule.Check("no agent", []schedule.Entry{
		{Name: "a b", Cron: "* * * * *"},
		{Name: "twice", Cron: "* * * * *"},
		{Name: "twice", Cron: "* * * *"},
		{Name: "range", Cron: "61 * * * *"},
		{Name: "never", Cron: "0 0 30 2 *"},
		{Name: "sunday", Cron: "0 0 * * 7"},
		{Name: "zone", Cron: "TZ=Asia/Tokyo 0 0 * * *"},
		{Name: "every", Cron: "@hourly"},
		{Name: "chatty", Cron: "* * * * *", Reason: strings.Repeat("a", schedule.MaxText+1)},
	}, day(8, 0, 0))
	got := strings.Join(faults, "\n")
	for _, want := range []string{
		`"no agent"`, `"a b"`, "twice): the name is there twice", "twice): cron \"* * * *\": has 4 fields", "range): cron",
		"never fires", "zone): cron", "sunday): cron \"0 0 * * 7\": day of week: 7 is out of range 0 to 6", "every): cron", "chatty): reason",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got %s\nwant a line with %s", got, want)
		}
	}
	if len(faults) != 10 {
		t.Errorf("got %d faults, want 10:\n%s", len(faults), got)
	}
	if _, faults := schedule.Check("lucky", make([]schedule.Entry, schedule.MaxEntries+1), day(8, 0, 0)); len(faults) != 1 {
		t.Errorf("too many entries: got %v", faults)
	}
}

func TestFollowingIsUTC(t *testing.T) {
	t.Parallel()
	tokyo := time.FixedZone("", 9*3600)
	got, err := schedule.Following("0 8 * * *", day(7, 59, 59).In(tokyo))
	if want := day(8, 0, 0); err != nil || !got.Equal(want) {
		t.Errorf("got %s, %v, want %s", got, err, want)
	}
}

func TestCause(t *testing.T) {
	t.Parallel()
	cron := schedule.Due{Name: strings.Repeat("n", schedule.MaxName), At: day(8, 0, 0)}
	alarm := schedule.Due{Name: schedule.AlarmName, Alarm: "t1.0", At: day(8, 0, 1)}
	for _, d := range []schedule.Due{cron, alarm} {
		if !api.ValidKey(d.Cause()) {
			t.Errorf("%q is not a key", d.Cause())
		}
	}
	if got, want := (schedule.Due{Name: "a", At: day(8, 0, 0)}).Cause(), "cron-a-29540640"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := alarm.Cause(), "alarm-1772438401000000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestAlarmCheck(t *testing.T) {
	t.Parallel()
	now := day(8, 0, 0)
	good := schedule.Alarm{ID: "t1.0", Agent: "lucky", At: now.Add(schedule.MaxAhead + 2*time.Minute)} // by a clock that is ahead
	past := good
	past.At = now.Add(-time.Hour)
	for _, a := range []schedule.Alarm{good, past} {
		if err := a.Check(now); err != nil {
			t.Errorf("%+v: got %v", a, err)
		}
	}
	for want, change := range map[string]func(*schedule.Alarm){
		"away": func(a *schedule.Alarm) { a.At = a.At.Add(time.Second) }, "needs an id": func(a *schedule.Alarm) { a.ID = "" },
		"agent's id": func(a *schedule.Alarm) { a.Agent = "a.b" }, "needs a time": func(a *schedule.Alarm) { a.At = time.UnixMicro(0) },
		"plain": func(a *schedule.Alarm) { a.ID = "a\x00" },
	} {
		a := good
		change(&a)
		if err := a.Check(now); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", a, err, want)
		}
	}
}

func TestStale(t *testing.T) {
	t.Parallel()
	set := day(8, 0, 0)
	tests := map[string]struct {
		agent schedule.Agent
		want  bool
	}{
		"unknown":         {schedule.Agent{}, false},
		"asleep":          {schedule.Agent{State: api.StateSleeping, Changed: set.Add(time.Second)}, false},
		"woken since":     {schedule.Agent{State: api.StateWaking, Changed: set.Add(time.Second)}, false},
		"dead before":     {schedule.Agent{State: api.StateDead, Changed: set}, false},
		"dead since then": {schedule.Agent{State: api.StateDead, Changed: set.Add(time.Second)}, true},
	}
	for name, test := range tests {
		if got := test.agent.Stale(set); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

func TestClip(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"": "", "short": "short", "a\x00b\xffc": "abc",
		strings.Repeat("é", schedule.MaxText): strings.Repeat("é", (schedule.MaxText-3)/2) + "…",
	} {
		if got := schedule.Clip(in); got != want || len(got) > schedule.MaxText {
			t.Errorf("%.20q: got %q, want %q", in, got, want)
		}
	}
}

func FuzzFollowing(f *testing.F) {
	for _, s := range []string{"* * * * *", "0 0 29 2 *", "*/7 1-3 * * MON", "@every 1s", "TZ=UTC 1 1 1 1", "0 0 31 2 *"} {
		f.Add(s)
	}
	now := day(8, 0, 0)
	f.Fuzz(func(t *testing.T, expr string) {
		next, err := schedule.Following(expr, now)
		if err == nil && (!next.After(now) || next.Second() != 0) {
			t.Errorf("%q: got %s after %s", expr, next, now)
		}
	})
}
