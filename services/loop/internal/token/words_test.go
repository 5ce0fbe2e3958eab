package token

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tiktoken-go/tokenizer/codec"
)

// TestWordsAreTheEncoders checks that words counts the same tokens as the library, for
// any combination of words.
func TestWordsAreTheEncoders(t *testing.T) {
	t.Parallel()
	library := codec.NewCl100kBase()
	w := &words{encoder: library}
	check := func(text string) {
		t.Helper()
		want, err := library.Count(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := w.Count(text); err != nil || got != want {
			t.Errorf("%q: got %d tokens, %v, want %d", text, got, err, want)
		}
	}
	for a := range 128 {
		check(string(rune(a)))
		for b := range 128 {
			check(string([]byte{byte(a), byte(b)}))
			check("x" + string([]byte{byte(a), byte(b)}) + "y")
		}
	}
	parts := []string{
		"a", "Z", "hello", "HTTP", "'s", "'S", "'re", "'VE", "'l", "'ll", "'", "''", "1", "42", "1234", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\v", "\f", "\x00", "\x1c",
		"\x7f", ".", "...", "{\"", "\":", "-", "_", "/", "\\", "[", "]", "é", "語", "\u00a0", "\u017f",
	}
	r := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // the same texts in each test run
	for range 20_000 {
		var b strings.Builder
		for range 1 + r.IntN(8) {
			b.WriteString(parts[r.IntN(len(parts))])
		}
		check(b.String())
	}
	for range 5_000 {
		text := make([]byte, 1+r.IntN(40))
		for i := range text {
			text[i] = byte(r.IntN(128))
		}
		check(string(text))
	}
}

// TestWordsAreBounded checks that the cache is bounded and has no long words.
func TestWordsAreBounded(t *testing.T) {
	t.Parallel()
	w := &words{encoder: &costs{}}
	for i := range 3 * perWords {
		word := []byte("zzzz")
		for k := range word {
			word[k] = byte('a' + i>>(4*k)&15)
		}
		if _, err := w.Count(string(word)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(w.young) + len(w.old); n > 2*perWords || n < perWords {
		t.Errorf("%d words are remembered, want %d to %d", n, perWords, 2*perWords)
	}
	n := len(w.young)
	if _, err := w.Count(strings.Repeat("y", maxWord+1)); err != nil || len(w.young) != n {
		t.Errorf("a word of %d bytes is remembered (%v)", maxWord+1, err)
	}
}

// BenchmarkCount counts texts of 5,000 bytes that differ only in numbers, as rendered
// memories do.
func BenchmarkCount(b *testing.B) {
	c := New()
	b.ReportAllocs()
	for i := range b.N {
		c.Count(strings.Repeat(fmt.Sprintf("- %d min ago, success: \"called exec, read_file; it's %d\"\n", i%1000, i), 90))
	}
}
