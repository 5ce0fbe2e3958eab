package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/disk"
	"github.com/anima-run/anima/pkg/disk/disktest"
	"github.com/anima-run/anima/pkg/host"
)

// ready waits until the readiness probe answers with the status, and returns its body.
func (r *running) ready(status int) string {
	r.t.Helper()
	return until(r.t, func() response { return get(r.t, r.Ops+"/readyz", nil) }, func(v response) bool { return v.status == status }).body
}

// TestFullDisk fills the disk while a run is in progress. Messages are then refused with
// the reason. After space is freed, new messages and the run continue without a restart.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disktest.Run(t, 128*disk.MiB, func(t *testing.T, dir string) {
		m := newMachine(t)
		m.env["HOME"] = dir
		u := m.up()
		m.cli("session", "send", "lucky", "hello")
		acc := asked[api.Accepted](m, "session", "send", "lucky", "slow", "--no-wait")
		m.watch("lucky-main", "loop_execute")
		free := disktest.Fill(t, dir)

		if got := u.ready(http.StatusServiceUnavailable); !strings.Contains(got, "the disk of the data folder is full") {
			t.Errorf("readyz says %q", got)
		}
		m.fails(exitUnavailable, "", []string{"session", "send", "lucky", "hello"}, "the disk of the data folder is full", "free space on it", "ANIMA_DISK_RESERVE")
		m.fails(exitUnavailable, "---\nname: Nova\n---\nBe.\n", []string{"agent", "apply", "-"}, "the disk of the data folder is full")
		res := u.try(http.MethodPost, "/v1/sessions/lucky-main/messages", `{"content":"hello"}`, nil)
		if res.status != http.StatusInsufficientStorage || !strings.Contains(res.body, api.ReasonNoSpace) {
			t.Errorf("a message over HTTP: %d %s, want 507 and %s", res.status, res.body, api.ReasonNoSpace)
		}
		until(t, u.log, func(log string) bool { return strings.Contains(log, "critical write error") }) // of the run in progress

		free()
		u.ready(http.StatusOK)
		if end := asked[api.LoopEnd](m, "session", "send", "lucky", "hello"); !end.Success {
			t.Errorf("with space again a message ends as %+v\n%s", end, u.log())
		}
		if got := asked[api.RunState](m, "run", "get", acc.Run, "--session", "lucky-main"); got.Status != api.RunEnded || !got.Success {
			t.Errorf("the run that was under way is %+v", got)
		}
	})
}

// TestStartOnAFullDisk checks that the error of a start on a full disk names the disk, and
// that the same folder is used when there is space again.
func TestStartOnAFullDisk(t *testing.T) {
	t.Parallel()
	disktest.Run(t, 128*disk.MiB, func(t *testing.T, dir string) {
		m := newMachine(t)
		m.env["HOME"] = dir
		m.up().stop()
		free := disktest.Fill(t, dir)
		m.fails(exitUnavailable, "", []string{"up"}, "the disk of the data folder is full", "free space on it")
		free()
		m.up()
	})
}

// TestDoctorOnAFullDisk checks that the doctor advises to free space if a full disk prevents
// the checks of a folder that no anima uses.
func TestDoctorOnAFullDisk(t *testing.T) {
	t.Parallel()
	disktest.Run(t, 128*disk.MiB, func(t *testing.T, dir string) {
		m := newMachine(t)
		m.env["HOME"] = dir
		m.up().stop()
		free := disktest.Fill(t, dir)
		findings := func() []host.Finding {
			t.Helper()
			var out, errs bytes.Buffer
			run(t.Context(), []string{"doctor", "-o", "json"}, m.app(nil, &out, &errs))
			var all []host.Finding
			if err := json.Unmarshal(out.Bytes(), &all); err != nil {
				t.Fatalf("%v: %s %s", err, &out, &errs)
			}
			return all
		}
		stores := false
		for _, f := range findings() {
			stores = stores || f.Check == "stores"
			if f.Level == host.LevelFault && !strings.Contains(f.Next, "free space") {
				t.Errorf("on a full disk: %+v, want the advice to free space", f)
			}
		}
		if !stores {
			t.Error("no finding says that the stores are not checked")
		}
		free()
		for _, f := range findings() {
			if f.Level == host.LevelFault {
				t.Errorf("with space again: %+v", f)
			}
		}
	})
}

// fullFile is a writer to which nothing can be written.
type fullFile struct{}

func (fullFile) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestOutputIsLost checks that a command whose output cannot be written fails.
func TestOutputIsLost(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.up()
	m.cli("session", "send", "lucky", "hello")
	for _, args := range [][]string{{"session", "events", "lucky-main"}, {"session", "transcript", "lucky-main"}} {
		var errs bytes.Buffer
		if code := run(t.Context(), args, m.app(nil, fullFile{}, &errs)); code != exitFailed || !strings.Contains(errs.String(), "no space left") {
			t.Errorf("%s: exit %d, %q, want exit %d and the cause", args, code, &errs, exitFailed)
		}
	}
}
