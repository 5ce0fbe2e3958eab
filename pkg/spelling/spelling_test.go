package spelling_test

import (
	"testing"

	"github.com/anima-run/anima/pkg/spelling"
)

func TestNearest(t *testing.T) {
	t.Parallel()
	known := []string{"read_file", "write_file", "exec", "it"}
	for _, c := range []struct {
		word string
		most int
		want string
	}{
		{"raed_file", 2, "read_file"},
		{"WriteFile", 2, "write_file"},
		{"exe", 1, "exec"},
		{"exxecc", 1, ""},
		{"exxecc", 2, "exec"},
		{"exec", 0, "exec"},
		{"on", 2, ""}, // nothing of "it" remains
		{"", 9, ""},
	} {
		if got := spelling.Nearest(c.word, known, c.most); got != c.want {
			t.Errorf("%q with %d edits: got %q, want %q", c.word, c.most, got, c.want)
		}
	}
	if got := spelling.Nearest("b", []string{"ab", "cb"}, 1); got != "ab" {
		t.Errorf("two words at the same distance: got %q, want the first", got)
	}
	if got := spelling.Nearest("x", nil, 3); got != "" {
		t.Errorf("no words: got %q, want none", got)
	}
}
