package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// watched is a process of the whole suite and samples of its resources.
type watched struct {
	t       *testing.T
	p       *process
	w       *world
	js      jetstream.JetStream
	turns   func() int64 // number so far
	samples []sample
}

// start starts the process on a folder, with an ops port and additional settings.
func (d *watched) start(dir string, more map[string]string) {
	d.t.Helper()
	ops := freeAddr(d.t)
	env := map[string]string{"ANIMA_OPS_ADDR": ops}
	maps.Copy(env, more)
	d.p, d.w = upWith(d.t, dir, env)
	d.w.ops = "http://" + ops
	d.js = streams(d.t, dir)
}

// sample holds the resources of a process at one time.
type sample struct {
	counts [counted]int64
	turns  int64
}

// Indexes of the counts. Those below bounded must not grow.
const (
	goroutines = iota
	descriptors
	children
	consumers
	coordination // keys
	others       // files, without those of the streams
	bounded
)

const (
	resident = bounded + iota // bytes of memory
	heap                      // bytes in use
	onStreams
	onDatabases
	onRest
	counted
)

var kindNames = [counted]string{
	goroutines: "goroutines", descriptors: "open files", children: "child processes", consumers: "consumers", coordination: "keys in buckets",
	others: "files but the streams'", resident: "resident memory, MiB", heap: "heap, MiB", onStreams: "streams, MiB", onDatabases: "databases, MiB", onRest: "other files, MiB",
}

func (d *watched) pause(until time.Time) {
	select {
	case <-d.t.Context().Done():
	case <-time.After(time.Until(until)):
	}
}

// sample takes eight samples at intervals of 250 ms and returns the minimum of each
// count, to exclude work in progress.
func (d *watched) sample() sample {
	d.t.Helper()
	var least sample
	for look := range 8 {
		s := d.look()
		for k, n := range s.counts {
			if look == 0 || n < least.counts[k] {
				least.counts[k] = n
			}
		}
		least.turns = s.turns
		d.pause(time.Now().Add(250 * time.Millisecond))
	}
	return least
}

func (d *watched) look() (s sample) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Minute)
	defer cancel()
	proc := fmt.Sprintf("/proc/%d", d.p.cmd.Process.Pid)
	open, err := os.ReadDir(proc + "/fd")
	d.must(err)
	s.counts[descriptors] = int64(len(open))
	tasks, err := filepath.Glob(proc + "/task/*/children")
	d.must(err)
	for _, path := range tasks {
		data, _ := os.ReadFile(path) // the thread may have ended, and has no children then
		s.counts[children] += int64(len(strings.Fields(string(data))))
	}
	s.counts[resident] = residentOf(d.t, d.p.cmd.Process.Pid)
	metrics, err := scrape(ctx, d.w.ops)
	d.must(err)
	for _, m := range metrics {
		switch m.name {
		case "go_goroutines":
			s.counts[goroutines] = int64(m.value)
		case "go_memstats_heap_inuse_bytes":
			s.counts[heap] = int64(m.value)
		}
	}
	if s.counts[goroutines] == 0 || s.counts[heap] == 0 {
		d.t.Fatal("the metrics have no goroutines or no heap")
	}
	all := d.js.ListStreams(ctx)
	for st := range all.Info() {
		s.counts[consumers] += int64(st.State.Consumers)
		if strings.HasPrefix(st.Config.Name, "KV_") {
			s.counts[coordination] += int64(st.State.Msgs) //nolint:gosec // a small number
		}
	}
	d.must(all.Err())
	d.must(filepath.WalkDir(d.w.data, func(path string, e fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil && !e.IsDir() {
			info, err = e.Info()
		}
		switch {
		case errors.Is(err, fs.ErrNotExist) || err == nil && e.IsDir(): // removed meanwhile
			return nil
		case err != nil:
			return err
		}
		rel, err := filepath.Rel(d.w.data, path)
		switch {
		case strings.HasPrefix(rel, "nats/"):
			s.counts[onStreams] += info.Size()
			return err
		case strings.Contains(rel, ".db"):
			s.counts[onDatabases] += info.Size()
		default:
			s.counts[onRest] += info.Size()
		}
		s.counts[others]++
		return err
	}))
	s.turns = d.turns()
	return s
}

func (d *watched) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// steady compares the last quarter of the samples with the second one; the first one is
// the start. A leak makes the counts of the last quarter exceed those of the second by
// more than slack.
func (d *watched) steady(slack int64) {
	quarter := len(d.samples) / 4
	before, last := d.samples[quarter:2*quarter], d.samples[len(d.samples)-quarter:]
	for k := range bounded {
		of := func(s sample) int64 { return s.counts[k] }
		most := of(slices.MaxFunc(before, func(a, b sample) int { return int(of(a) - of(b)) }))
		least := of(slices.MinFunc(last, func(a, b sample) int { return int(of(a) - of(b)) }))
		if least > most+slack {
			d.t.Errorf("%s: at least %d in the last quarter, at most %d in the second", kindNames[k], least, most)
		}
	}
	for _, k := range []int{onStreams, onDatabases, onRest} {
		if a, b := perTurn(before, k), perTurn(last, k); b > 1.5*a+1024 {
			d.t.Errorf("%s: %.0f bytes a turn in the last quarter, %.0f in the second", kindNames[k], b, a)
		}
	}
}

// settled waits until the ledger verifies and has no active hold. The verification is the
// streamed one: after an hour of load it takes longer than a request may.
func (d *watched) settled() {
	d.t.Helper()
	var report api.LedgerReport
	if !until(d.t.Context(), time.Minute, func() bool {
		ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Minute)
		defer cancel()
		var err error
		report, err = bus.CallStream[api.VerifyProgress, api.LedgerReport](ctx, d.w.bus, api.VerifyLedgerV2{}, func(api.VerifyProgress) error { return nil })
		if err != nil && api.CodeOf(err) != api.Unavailable {
			d.t.Fatal(err)
		}
		return err == nil && report.OK && report.ActiveHolds == 0
	}) {
		d.t.Errorf("ledger: %+v", report)
	}
}

// wanted repeats a request until it is answered. It needs a long timeout: under the fast
// clock a second lasts a fraction of one, so that a busy machine answers late.
func wanted[Resp any](d *watched, req api.Message) Resp {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Minute)
	defer cancel()
	v, err := asked[Resp](ctx, d.w, req)
	if err != nil {
		d.t.Fatalf("%T: %v", req, err)
	}
	return v
}

// perTurn returns the growth of a count per turn, in bytes.
func perTurn(samples []sample, kind int) float64 {
	first, last := samples[0], samples[len(samples)-1]
	return float64(last.counts[kind]-first.counts[kind]) / float64(max(1, last.turns-first.turns))
}

// table returns a table with a row for each kind of resource and a column for some
// samples, which were taken one per unit of time.
func (d *watched) table(unit string) string {
	var b strings.Builder
	every := max(1, len(d.samples)/6)
	var shown []int
	for i := range d.samples {
		if i == 0 || (i+1)%every == 0 || i == len(d.samples)-1 {
			shown = append(shown, i)
		}
	}
	row := func(name string, value func(sample) string) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, i := range shown {
			fmt.Fprintf(&b, " %s |", value(d.samples[i]))
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "| after %s |", unit)
	for _, i := range shown {
		fmt.Fprintf(&b, " %d |", i+1)
	}
	b.WriteString("\n|" + strings.Repeat(" --- |", len(shown)+1) + "\n")
	row("turns", func(s sample) string { return strconv.FormatInt(s.turns, 10) })
	for k, name := range kindNames {
		row(name, func(s sample) string {
			if k < bounded {
				return strconv.FormatInt(s.counts[k], 10)
			}
			return fmt.Sprintf("%.1f", float64(s.counts[k])/(1<<20))
		})
	}
	half := d.samples[len(d.samples)/2:]
	fmt.Fprintf(&b, "\nBytes that a turn adds, second half: streams %.0f, databases %.0f.\n", perTurn(half, onStreams), perTurn(half, onDatabases))
	return b.String()
}
