package e2e

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Variables of make chaos. Without them the test has its short form.
const (
	chaosKills   = "ANIMA_CHAOS_KILLS"   // number of kills
	chaosFolders = "ANIMA_CHAOS_FOLDERS" // number of data folders, each with a process
	chaosSeed    = "ANIMA_CHAOS_SEED"
	chaosLeast   = "ANIMA_CHAOS_LEAST" // minimum age at which a process is killed
	chaosMost    = "ANIMA_CHAOS_MOST"  // maximum age
	chaosDoc     = "ANIMA_CHAOS_DOC"   // file whose figures are replaced
)

// promptly is the goal for a start and for the resume of a run that was cut off (issue
// 13, "Must hold").
const promptly = 2 * time.Second

// TestChaos runs the whole suite in several data folders under load and kills it with
// SIGKILL at random ages. The NATS stores are rebuilt at each start. The oracle of the
// crash matrix then checks the result. The test fails for lost messages, wrong effects
// and sessions that cannot be used; times are measured and printed.
func TestChaos(t *testing.T) {
	t.Parallel()
	kills, folders := number(t, chaosKills, 6), number(t, chaosFolders, 3)
	least, most := duration(t, chaosLeast, time.Second), duration(t, chaosMost, 4*time.Second)
	seed := uint64(number(t, chaosSeed, 1))
	plans := planOf(kills, folders, least, most, seed)
	bin := builds.program(t, "cmd/anima", ".")
	c := &chaos{t: t, kills: kills, began: time.Now(), longest: longest(plans)}
	t.Logf("%d kills in %d folders, at ages from %s to %s, seed %d: about %s", kills, len(plans), least, most, seed, c.longest.Round(time.Second))
	var all, starting sync.WaitGroup
	results := make([]chaosResult, len(plans))
	for i, ages := range plans {
		f := newChaosFolder(t, bin, i, ages, rand.New(rand.NewPCG(seed, uint64(i))))
		starting.Add(1)
		over := sync.OnceFunc(starting.Done)
		all.Go(func() {
			defer over()
			ctx, cancel := context.WithTimeout(t.Context(), 2*c.longest+10*time.Minute)
			defer cancel()
			results[i] = f.run(ctx, c.killed, func() { over(); starting.Wait() })
		})
	}
	all.Wait()
	var sum chaosResult
	for i, r := range results {
		for _, fault := range r.faults {
			t.Errorf("folder %d: %s", i, fault)
		}
		sum.add(r)
	}
	table := sum.table(least, most, seed, len(plans), time.Since(c.began))
	t.Logf("\n%s", table)
	if sum.kills != kills {
		t.Errorf("%d processes were killed, want %d", sum.kills, kills)
	}
	if path := os.Getenv(chaosDoc); path != "" && !t.Failed() {
		replaceGenerated(t, path, "<!-- generated below: make chaos -->", table)
	}
}

// chaos counts the kills of all folders and logs the progress.
type chaos struct {
	t       *testing.T
	kills   int
	began   time.Time
	longest time.Duration // estimated time of the slowest folder

	mu   sync.Mutex
	done int
}

func (c *chaos) killed(folder int, age time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done++
	gone := time.Since(c.began)
	c.t.Logf("%d of %d killed, folder %d at the age of %s; %s gone, about %s left",
		c.done, c.kills, folder, age.Round(100*time.Millisecond), gone.Round(time.Second), max(0, c.longest-gone).Round(time.Second))
}

// planOf draws the ages of all kills, uniformly by logarithm, and distributes them over
// the folders so that all take about the same time.
func planOf(kills, folders int, least, most time.Duration, seed uint64) [][]time.Duration {
	rng := rand.New(rand.NewPCG(seed, 0))
	ages := make([]time.Duration, kills)
	for i := range ages {
		ages[i] = time.Duration(float64(least) * math.Pow(float64(most)/float64(least), rng.Float64()))
	}
	slices.Sort(ages)
	slices.Reverse(ages)
	plans := make([][]time.Duration, min(folders, kills))
	for _, age := range ages {
		shortest := 0
		for i := range plans {
			if spent(plans[i]) < spent(plans[shortest]) {
				shortest = i
			}
		}
		plans[shortest] = append(plans[shortest], age)
	}
	for _, p := range plans {
		rng.Shuffle(len(p), func(i, j int) { p[i], p[j] = p[j], p[i] })
	}
	return plans
}

// aside is the estimated additional time per kill, for the start and the wait before the
// kill.
const aside = 3 * time.Second

func spent(ages []time.Duration) (sum time.Duration) {
	for _, a := range ages {
		sum += a + aside
	}
	return sum
}

func longest(plans [][]time.Duration) (most time.Duration) {
	for _, p := range plans {
		most = max(most, spent(p))
	}
	return most
}

func duration(t *testing.T, variable string, otherwise time.Duration) time.Duration {
	t.Helper()
	v := os.Getenv(variable)
	if v == "" {
		return otherwise
	}
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		t.Fatalf("%s=%q: want a duration", variable, v)
	}
	return d
}

// replaceGenerated replaces the text below a mark of a document.
func replaceGenerated(t *testing.T, path, mark, text string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(string(data), mark)
	if !found {
		t.Fatalf("%s has no line %s", path, mark)
	}
	if err := os.WriteFile(path, []byte(head+mark+"\n\n"+text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// chaosResult is the result of one folder or the sum of all.
type chaosResult struct {
	kills, accepted, lost, unusable, cuts, turns int
	starts, resumed                              []time.Duration
	faults                                       []string
	wrong                                        int // faults that the oracle found
	ledgers                                      int // ledgers that verify without a fault
}

func (r *chaosResult) add(o chaosResult) {
	r.kills += o.kills
	r.accepted += o.accepted
	r.lost += o.lost
	r.unusable += o.unusable
	r.cuts += o.cuts
	r.turns += o.turns
	r.wrong += o.wrong
	r.ledgers += o.ledgers
	r.starts = append(r.starts, o.starts...)
	r.resumed = append(r.resumed, o.resumed...)
	r.faults = append(r.faults, o.faults...)
}

func (r *chaosResult) table(least, most time.Duration, seed uint64, folders int, took time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d kills in %d folders, at ages from %s to %s, seed %d, %s.\n\n", r.kills, folders, least, most, seed, took.Round(time.Second))
	b.WriteString("| what | measured | goal |\n| --- | --- | --- |\n")
	row := func(what, got, goal string) { fmt.Fprintf(&b, "| %s | %s | %s |\n", what, got, goal) }
	row("messages accepted", fmt.Sprint(r.accepted), "")
	row("turns", fmt.Sprint(r.turns), "")
	row("messages lost", fmt.Sprint(r.lost), "0")
	row("faults that the oracle finds: effects, journals, sums, wakes, events", fmt.Sprint(r.wrong), "0")
	row("sessions that cannot be used", fmt.Sprint(r.unusable), "0")
	row("ledgers that verify", fmt.Sprintf("%d of %d", r.ledgers, folders), "all")
	row("runs cut by a kill", fmt.Sprint(r.cuts), "")
	row("start after a kill to ready", spread(r.starts), "max < 2s")
	row("start to the next step of a run that was cut", spread(r.resumed), "max < 2s")
	return b.String()
}

// spread formats the distribution of durations, "none" for an empty list.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "none"
	}
	sorted := slices.Sorted(slices.Values(all))
	late := 0
	for _, d := range sorted {
		if d >= promptly {
			late++
		}
	}
	at := func(share float64) time.Duration {
		return sorted[int(share*float64(len(sorted)-1))].Round(time.Millisecond)
	}
	return fmt.Sprintf("p50 %s, p99 %s, max %s, %d of %d later than %s", at(0.5), at(0.99), at(1), late, len(sorted), promptly)
}
