package prompt

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
)

// An answer larger than a model can give must not fill the window of every prompt
// after it.
func TestHugeAnswerIsCut(t *testing.T) {
	t.Parallel()
	huge := strings.Repeat("ż", 1<<19)
	got := render(api.Turn{ID: "r.1", Input: "go on", Thinking: huge}, false)[1].Content
	if len(got) > maxSaid+100 || !utf8.ValidString(got) || !strings.HasPrefix(got, "żż") || !strings.Contains(got, "983040 bytes of this answer are left out") {
		t.Errorf("got %d bytes, ending in %q", len(got), got[len(got)-80:])
	}
	whole := strings.Repeat("z", maxSaid)
	if got := render(api.Turn{ID: "r.1", Thinking: whole}, false)[0].Content; got != whole {
		t.Errorf("an answer of %d bytes is cut to %d", len(whole), len(got))
	}
}
