package proc

import (
	"os"
	"os/exec"
	"reflect"
	"syscall"
	"testing"
	"time"
)

func start(t *testing.T) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = c.Wait() }()
	return c
}

func TestStopEndsWhatWasRecorded(t *testing.T) {
	t.Parallel()
	d, c := Dir(t.TempDir()), start(t)
	if err := d.Write("x", c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Names(); err != nil || !reflect.DeepEqual(got, []string{"x"}) {
		t.Errorf("names: got %v %v", got, err)
	}
	if err := d.Stop(t.Context(), "x", syscall.SIGTERM, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if _, alive := d.Get("x"); alive {
		t.Error("it still runs")
	}
	if got, _ := d.Names(); len(got) != 0 {
		t.Errorf("records: got %v, want none", got)
	}
}

func TestStopLeavesAnotherProcessOfTheSameNumber(t *testing.T) {
	t.Parallel()
	c := start(t)
	r, err := Of(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, old := range map[string]Record{
		"started later": {PID: r.PID, Start: r.Start - 1, Boot: r.Boot},
		"another boot":  {PID: r.PID, Start: r.Start, Boot: "00000000-0000-0000-0000-000000000000"},
	} {
		if err := old.stop(t.Context(), syscall.SIGKILL, time.Second); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !r.Alive() {
			t.Fatalf("%s: the other process was ended", name)
		}
	}
}

func TestWriteOfAnEndedProcess(t *testing.T) {
	t.Parallel()
	c := exec.CommandContext(t.Context(), "true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	if err := Dir(t.TempDir()).Write("x", c.Process.Pid); err == nil {
		t.Error("got no error")
	}
	if (Record{PID: os.Getpid()}).Alive() {
		t.Error("a record without a start time is reported as current")
	}
}
