// Command mutate changes the safety code of the suite, one place at a time, and runs the
// tests that guard it. A change that no test detects is a survivor: either a test is
// missing, or the change has no effect, and accepted.txt gives the reason.
//
// It must not change source files: each mutant is an overlay of the go command.
//
//	make mutate                       the named mutants, and 20 random ones per target
//	make mutate TARGET=ledger N=100   more of one target
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// errSurvivors is the error of a run with survivors that accepted.txt does not list.
var errSurvivors = errors.New("some mutants survived: add a test for each, or a line with its reason to accepted.txt")

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("mutate", flag.ContinueOnError)
	root := flags.String("root", "../..", "the repository")
	list := flags.String("accepted", "accepted.txt", "the mutants that may survive")
	n := flags.Int("n", 20, "mutants drawn for each target; 0 means all of them")
	seed := flags.Uint64("seed", 1, "seed of the draw")
	only := flags.String("target", "", "only this target")
	timeout := flags.Duration("timeout", 3*time.Minute, "longest time for the tests of one mutant; a mutant that takes longer is killed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	base, err := filepath.Abs(*root)
	if err != nil {
		return err
	}
	accepted, err := readAccepted(*list)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(work) }() // the operating system removes a remainder
	r := runner{root: base, work: work, timeout: *timeout}

	var all []mutant
	for _, t := range targets() {
		if *only != "" && t.name != *only {
			continue
		}
		named, err := t.namedMutants(base)
		if err != nil {
			return err
		}
		drawn, err := t.drawnMutants(base)
		if err != nil {
			return err
		}
		rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(drawn), func(i, j int) { drawn[i], drawn[j] = drawn[j], drawn[i] })
		if *n > 0 {
			drawn = drawn[:min(*n, len(drawn))]
		}
		all = append(all, append(named, drawn...)...)
	}
	if len(all) == 0 {
		return fmt.Errorf("there is no target %q", *only)
	}
	return r.judge(ctx, all, accepted, out)
}

// judge runs every mutant and prints its verdict. Tests that fail without a mutant are an
// error.
func (r runner) judge(ctx context.Context, all []mutant, accepted []acceptance, out io.Writer) error {
	counts := map[verdict]int{}
	var survivors []string
	sound := map[string]bool{} // tests that pass without a mutant
	began := time.Now()
	for i, m := range all {
		at := time.Now()
		if tests := strings.Join(m.tests, " "); !sound[tests] {
			if err := r.sound(ctx, m); err != nil {
				return err
			}
			sound[tests] = true
		}
		v, err := r.test(ctx, m)
		if err != nil {
			return err
		}
		note := ""
		if v == survived {
			if k := slices.IndexFunc(accepted, func(a acceptance) bool { return a.fits(m) }); k >= 0 {
				v, note = tolerated, ": "+accepted[k].reason
			} else {
				survivors = append(survivors, m.String())
			}
		}
		counts[v]++
		left := time.Duration(float64(time.Since(began)) / float64(i+1) * float64(len(all)-i-1))
		fmt.Fprintf(out, "%d/%d %s %s (%.1f s, about %s left)%s\n", i+1, len(all), v, m, time.Since(at).Seconds(), left.Round(time.Second), note)
	}
	fmt.Fprintf(out, "\n%d mutants in %s: %d killed, %d do not compile, %d accepted, %d survived\n",
		len(all), time.Since(began).Round(time.Second), counts[killed], counts[invalid], counts[tolerated], counts[survived])
	for _, s := range survivors {
		fmt.Fprintln(out, "survived:", s)
	}
	if len(survivors) > 0 {
		return errSurvivors
	}
	return nil
}

// acceptance is a line of accepted.txt: a mutant that may survive, with the reason.
type acceptance struct{ file, operator, line, reason string }

func (a acceptance) fits(m mutant) bool {
	return a.file == m.file && a.operator == m.operator && a.line == m.text
}

func readAccepted(path string) ([]acceptance, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []acceptance
	for i, line := range strings.Split(string(data), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 || slices.Contains(f, "") {
			return nil, fmt.Errorf("%s:%d: want file, operator, source line and reason, separated by tabs", path, i+1)
		}
		all = append(all, acceptance{f[0], f[1], f[2], f[3]})
	}
	return all, nil
}
