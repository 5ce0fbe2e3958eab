package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// sustainedMinutes is the variable of make sustained. Without it the test has its short
// form, in which a minute takes one second.
const sustainedMinutes = "ANIMA_SUSTAINED_MINUTES"

// TestSustained makes runs in 16 sessions of one process without pauses for two minutes,
// until the agents have the memories that make a recall most expensive, measures the rate
// of the next half minute, and then applies 80 % of it. Runs begin at even intervals, whether earlier ones have
// ended or not, and the time of a run counts from its scheduled beginning. The test
// prints figures for each minute. It fails for failed runs and for resources that
// increase; the times of runs are printed for the reader and not checked.
func TestSustained(t *testing.T) {
	t.Parallel()
	minutes, minute := number(t, sustainedMinutes, 0), time.Minute
	if minutes == 0 {
		minutes, minute = 4, time.Second
	}
	if minutes < 4 {
		t.Fatalf("%s=%d: want at least 4, so that each quarter has one", sustainedMinutes, minutes)
	}
	s := &sustained{watched: watched{t: t}, minute: minute}
	s.start(t.TempDir(), map[string]string{"ANIMA_TREASURY_MAX_INFERENCE_DAILY_CENTS": "1000000000"}) // an agent exceeds the default after 18 minutes
	s.turns = func() int64 { return 2 * s.runs() }
	const sessions = 16
	s.load = loadOn(t, s.w, sessions)
	for _, a := range s.load.agents {
		call[api.Posted](t, s.w, api.Deposit{ID: "more-" + a.ID, Agent: a.ID, Amount: 1_000_000 * api.Dollar, Source: "faucet"})
	}
	young := s.peak(2 * minute)
	peak := s.peak(minute / 2)
	rate := peak * 8 / 10
	t.Logf("%.0f turns/s in the first two minutes, %.0f in the next half; 80 %% of the latter from now on", young, peak)
	s.pace(minutes, rate)
	t.Logf("\n%s\n%s\n%s", s.byMinute(), s.table("minutes"), s.byHome())
	s.steady(2 * sessions)
	s.settled()
}

type sustained struct {
	watched

	load   *load
	minute time.Duration
	homes  []map[string]int64 // bytes by file or stream, before the first minute and after each one

	mu   sync.Mutex
	took []time.Duration // of the runs that ended in this minute
	made int64           // number of runs that have ended in total
	laps []lap           // one for each minute
}

// lap holds the figures of one minute.
type lap struct {
	length       time.Duration
	took         []time.Duration // sorted
	user, kernel time.Duration   // processor time
}

func (s *sustained) runs() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made
}

// one makes a run that was scheduled for due.
func (s *sustained) one(a api.Agent, due time.Time) {
	s.load.one(a)
	took := time.Since(due)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took, s.made = append(s.took, took), s.made+1
}

// peak returns the rate in turns per second when no session pauses.
func (s *sustained) peak(length time.Duration) float64 {
	began := time.Now()
	var wg sync.WaitGroup
	for _, a := range s.load.agents {
		wg.Go(func() {
			for now := time.Now(); now.Sub(began) < length; now = time.Now() {
				s.one(a, now)
			}
		})
	}
	wg.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.took)
	s.took = nil
	return 2 * float64(n) / time.Since(began).Seconds()
}

// pace makes rate turns per second for some minutes, and samples the process after each.
func (s *sustained) pace(minutes int, rate float64) {
	const ahead = 1 << 20 // more than the number of runs that can be late
	due := make(chan time.Time, ahead)
	var wg sync.WaitGroup
	for _, a := range s.load.agents {
		wg.Go(func() {
			for at := range due {
				s.one(a, at)
			}
		})
	}
	began := time.Now()
	over := began.Add(time.Duration(minutes) * s.minute)
	wg.Go(func() {
		defer close(due)
		every := time.Duration(2 * float64(time.Second) / rate)
		for at := began; at.Before(over) && s.t.Context().Err() == nil; at = at.Add(every) {
			s.pause(at)
			due <- at
		}
	})
	s.homes = append(s.homes, s.home())
	from := began
	user, kernel := s.processor()
	for i := range minutes {
		s.pause(began.Add(time.Duration(i+1) * s.minute))
		now := time.Now()
		u, k := s.processor()
		s.mu.Lock()
		took := s.took
		s.took = nil
		s.mu.Unlock()
		slices.Sort(took)
		s.laps = append(s.laps, lap{now.Sub(from), took, u - user, k - kernel})
		from, user, kernel = now, u, k
		s.samples = append(s.samples, s.sample())
		s.homes = append(s.homes, s.home())
		if i%5 == 0 || i == minutes-1 {
			s.t.Logf("%s", s.line(i))
		}
	}
	wg.Wait()
}

// processor returns the processor time that the process has used.
func (s *sustained) processor() (user, kernel time.Duration) {
	s.t.Helper()
	user, kernel, err := processTimes(s.p.cmd.Process.Pid)
	s.must(err)
	return user, kernel
}

// home returns the stored bytes by stream and by file of the services' data.
func (s *sustained) home() map[string]int64 {
	s.t.Helper()
	all := map[string]int64{}
	streams := s.js.ListStreams(s.t.Context())
	for st := range streams.Info() {
		all["stream "+st.Config.Name] = int64(st.State.Bytes) //nolint:gosec // less than the size of a disk
	}
	s.must(streams.Err())
	for _, pattern := range []string{"*/*.db", "*/*.db-wal"} {
		files, err := filepath.Glob(filepath.Join(s.w.data, pattern))
		s.must(err)
		for _, file := range files {
			info, err := os.Stat(file)
			s.must(err)
			rel, err := filepath.Rel(s.w.data, file)
			s.must(err)
			all[rel] = info.Size()
		}
	}
	return all
}

func (s *sustained) line(i int) string {
	v := s.laps[i]
	if len(v.took) == 0 {
		return fmt.Sprintf("| %d | no run has ended |", i+1)
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	turns := 2 * float64(len(v.took))
	return fmt.Sprintf("| %d | %.0f | %.1f | %.1f | %.1f | %.2f | %.2f |", i+1, turns/v.length.Seconds(),
		ms(v.took[len(v.took)/2]), ms(v.took[len(v.took)*99/100]), ms(v.took[len(v.took)-1]), ms(v.user+v.kernel)/turns, ms(v.kernel)/turns)
}

// byMinute returns a table with a row for the first, the last and some other minutes.
func (s *sustained) byMinute() string {
	var b strings.Builder
	b.WriteString("| minute | turns/s | p50 of a run, ms | p99 | longest | processor time, ms a turn | of it in the kernel |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	every := max(1, len(s.laps)/12)
	for i := range s.laps {
		if i == 0 || (i+1)%every == 0 || i == len(s.laps)-1 {
			b.WriteString(s.line(i) + "\n")
		}
	}
	first, last := s.laps[0].took, s.laps[len(s.laps)-1].took
	if len(first) > 0 && len(last) > 0 {
		fmt.Fprintf(&b, "\np99 of the last minute: %.2f times that of the first.\n", float64(last[len(last)*99/100])/float64(first[len(first)*99/100]))
	}
	return b.String()
}

// byHome returns a table with a row for each file and stream and the bytes that a turn
// adds to it.
func (s *sustained) byHome() string {
	first, half, last := s.homes[0], s.homes[len(s.homes)/2], s.homes[len(s.homes)-1]
	runs := func(from int) (n float64) {
		for _, v := range s.laps[from:] {
			n += float64(len(v.took))
		}
		return max(1, n)
	}
	all, later := 2*runs(0), 2*runs(len(s.homes)/2)
	var b strings.Builder
	b.WriteString("| home | bytes a turn adds | in the second half | MiB at the end |\n| --- | --- | --- | --- |\n")
	for _, name := range slices.SortedFunc(maps.Keys(last), func(a, b string) int {
		return cmp.Or(cmp.Compare(last[b]-first[b], last[a]-first[a]), cmp.Compare(a, b))
	}) {
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.1f |\n", name, float64(last[name]-first[name])/all, float64(last[name]-half[name])/later, float64(last[name])/(1<<20))
	}
	return b.String()
}

// processTime returns the processor time that a process has used.
func processTime(pid int) (time.Duration, error) {
	user, kernel, err := processTimes(pid)
	return user + kernel, err
}

// processTimes returns the processor time that a process has used itself and in the
// kernel. The resolution is one tick of Linux, 10 ms.
func processTimes(pid int) (user, kernel time.Duration, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	for i, to := range []*time.Duration{&user, &kernel} { // utime and stime, proc(5)
		n, err := strconv.ParseInt(fields[11+i], 10, 64)
		if err != nil {
			return 0, 0, err
		}
		*to = time.Duration(n) * 10 * time.Millisecond // USER_HZ is 100
	}
	return user, kernel, nil
}
