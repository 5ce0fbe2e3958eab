package memory

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// TestTextsAreWrittenAsBefore checks that the functions without regular expressions and
// encoders return the same as with them, because a replay must show memories in the same
// bytes.
func TestTextsAreWrittenAsBefore(t *testing.T) {
	t.Parallel()
	parts := []string{
		"a", "Z", "0", "_", ".", ":", "/", "-", " ", "\n", "\t", "\"", "\\", "<", ">", "&", "\x00", "\x7f", "~", "É", "é", "\u0301", "\u200b", "ﬁ", "K", "語", "\xff", "\u2028",
	}
	word := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,99}$`)
	r := rand.New(rand.NewPCG(5, 6)) //nolint:gosec // the same texts in each test run
	text := func() string {
		var b strings.Builder
		few := 1 + r.IntN(len(parts)) // some texts have letters only
		for range r.IntN(5) * r.IntN(30) {
			b.WriteString(parts[r.IntN(few)])
		}
		return b.String()
	}
	for range 20_000 {
		s := text()
		if got, want := plainWord(s), word.MatchString(s); got != want {
			t.Fatalf("%q is a plain word: got %v, want %v", s, got, want)
		}
		want, err := json.Marshal(strings.TrimSpace(sanitize.Clean(s)))
		if err != nil {
			t.Fatal(err)
		}
		if got := appendQuoted([]byte("x"), s); string(got) != "x"+string(want) {
			t.Fatalf("%q is quoted %s, want %s", s, got[1:], want)
		}
		all := []string{text(), s, text()}
		if got, want := appendFolded([]byte("x")[:0], all...), Fold(strings.Join(all, " ")); string(got) != want {
			t.Fatalf("%q is folded to %q, want %q", all, got, want)
		}
		f := float64(r.IntN(1001)) / 1000
		if got, want := string(appendShort(nil, f)), fmt.Sprintf("%.2g", f); got != want {
			t.Fatalf("%v is written %s, want %s", f, got, want)
		}
	}
	for micros, want := range map[int64]string{-1: "a moment", 119e6: "a moment", 120e6: "2 min", 7199e6: "119 min", 7200e6: "2 h", 172799e6: "47 h", 172800e6: "2 days"} {
		if got := string(appendAge(nil, micros)); got != want {
			t.Errorf("an age of %d µs is written %s, want %s", micros, got, want)
		}
	}
}
