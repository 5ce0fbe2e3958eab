package token

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"
)

func TestCount(t *testing.T) {
	t.Parallel()
	c := New()
	// V-18 (docs/reference/context.md, Test vectors).
	for text, want := range map[string]int64{
		"": 0, "a": 1, "abcd": 1, "abcde": 2, strings.Repeat("x", 100): 25, strings.Repeat("x", 101): 26, "hello world": 3, "日本語テキスト": 7,
		"\U0001F600\U0001F600\U0001F600\U0001F600": 8, "\xff\xfe": 1,
	} {
		for range 2 { // the second count is from the cache
			if got := c.Count(text); got != want {
				t.Errorf("%.20q is %d tokens, want %d", text, got, want)
			}
		}
	}
}

// TestCountPieces checks that a text that is cut counts at most one token more for each
// cut than the encoder counts for the whole.
func TestCountPieces(t *testing.T) {
	t.Parallel()
	prose := strings.Repeat("α β, γ: δέκα λέξεις 12 345 (και) άλλες.\n", 100) // more tokens than a quarter of its length
	whole, err := cl100k().Count(prose)
	if err != nil {
		t.Fatal(err)
	}
	got := New().Count(prose)
	if cuts := int64(len(prose)/(maxPiece/2) + 1); got < int64(whole) || got > int64(whole)+cuts {
		t.Errorf("got %d tokens, want %d to %d", got, whole, int64(whole)+cuts)
	}
}

// hostile returns texts of a size for which a plain encoder takes more than linear time.
func hostile(size int) map[string]string {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same bytes in each test run
	random := make([]byte, size)
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	word := make([]byte, size)
	for i := range word {
		word[i] = byte('a' + r.IntN(26))
	}
	return map[string]string{
		"one character": strings.Repeat("a", size), "spaces": strings.Repeat(" ", size), "random bytes": string(random), "one word": string(word),
		"lines": strings.Repeat("\n", size), "spaces and a letter": strings.Repeat(" ", size-1) + "x", "continuations": strings.Repeat("\x80", size),
		"wide letters": strings.Repeat("語", size/3), "digits": strings.Repeat("7", size), "marks": strings.Repeat("!", size),
	}
}

// costs is an encoder that counts the steps of a quadratic one.
type costs struct {
	mu             sync.Mutex
	steps, longest int
}

func (c *costs) Count(piece string) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps += len(piece) * len(piece)
	c.longest = max(c.longest, len(piece))
	return len(piece), nil
}

// TestLinear checks that four times the text takes four times the steps, also if an
// encoder's steps are quadratic in the size of a piece.
func TestLinear(t *testing.T) {
	t.Parallel()
	work := func(text string) *costs {
		e := &costs{}
		counting(func() encoder { return e }).Count(text)
		return e
	}
	small, large := hostile(1<<18), hostile(1<<20)
	for name, text := range large {
		a, b := work(small[name]), work(text)
		if b.longest > 512 {
			t.Errorf("%s: a piece of %d bytes was encoded, want a few hundred at most", name, b.longest)
		}
		if float64(b.steps) > 4.1*float64(a.steps) {
			t.Errorf("%s: %d steps for 256 KiB, %d for 1 MiB: more than four times", name, a.steps, b.steps)
		}
	}
}

// TestLinearAllocations checks the allocations of the library itself.
func TestLinearAllocations(t *testing.T) { //nolint:paralleltest // counts allocations of the whole process
	small, large := hostile(1<<12), hostile(1<<14)
	c := New()
	for name := range large {
		allocs := func(text string) float64 { return testing.AllocsPerRun(1, func() { c.count(text) }) }
		a, b := allocs(small[name]), allocs(large[name])
		if b > 5*a+100 {
			t.Errorf("%s: %.0f allocations for 4 KiB, %.0f for 16 KiB: more than four times", name, a, b)
		}
	}
}

// TestHostile checks that the library counts hostile texts in a short time.
func TestHostile(t *testing.T) {
	t.Parallel()
	c := New()
	all := hostile(1 << 18)
	for _, name := range []string{"one character", "spaces", "random bytes", "one word"} {
		text := all[name]
		if got := c.Count(text); got < int64(utf8.RuneCountInString(text))/4 || got > int64(len(text)) {
			t.Errorf("%s: %d tokens", name, got)
		}
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	e := &costs{}
	c := counting(func() encoder { return e })
	for i := range 3 * perCache {
		c.Count(fmt.Sprintf("a text that is longer than the shortest one %d", i))
	}
	if n := len(c.young) + len(c.old); n > 2*perCache {
		t.Errorf("%d texts are remembered, want at most %d", n, 2*perCache)
	}
	before := e.steps
	c.Count(fmt.Sprintf("a text that is longer than the shortest one %d", 3*perCache-1))
	if e.steps != before {
		t.Error("a text just counted was encoded again")
	}
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	c := New()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 200 {
				text := fmt.Sprintf("the same few texts, counted by many at the same time: %d", (i+j)%20)
				if got := c.Count(text); got < 10 || got > 20 {
					t.Errorf("%q is %d tokens", text, got)
				}
			}
		})
	}
	wg.Wait()
}

func TestRatio(t *testing.T) {
	t.Parallel()
	var r Ratio
	if got := r.Of(1001); got != 1001 {
		t.Errorf("without reports 1001 is %d", got)
	}
	for range 40 {
		r = r.Learn(1000, 1300)
	}
	if got := r.Of(1000); got < 1290 || got > 1300 {
		t.Errorf("after reports of 1.3 a thousand is %d", got)
	}
	if got := r.Learn(0, 5).Learn(5, 0).Learn(-1, -1); got != r {
		t.Errorf("reports of nothing changed %d to %d", r, got)
	}
	for range 40 {
		r = r.Learn(1, 1_000_000)
	}
	if r > highest || r < highest-weight {
		t.Errorf("the ratio grew to %d, want about %d", r, highest)
	}
	for range 60 {
		r = r.Learn(1_000_000, 1)
	}
	if r < lowest || r > lowest+weight {
		t.Errorf("the ratio fell to %d, want about %d", r, lowest)
	}
	if got := Ratio(1500).Of(1); got != 2 {
		t.Errorf("1.5 tokens are %d, want 2", got)
	}
}

func FuzzCount(f *testing.F) {
	for _, text := range hostile(3000) {
		f.Add(text)
	}
	f.Add("'s don't   \r\n\r\n x")
	c := New()
	f.Fuzz(func(t *testing.T, text string) {
		got := c.Count(text)
		if least := (units(text) + 3) / 4; got < least || got > max(least, int64(len(text))) {
			t.Errorf("%d tokens of %d bytes", got, len(text))
		}
	})
}
