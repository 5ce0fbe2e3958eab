package provider

// A model that has lost its way writes the same words until its limit. The text is
// taken for such a loop when its last repetitionWindow bytes repeat a piece of at most
// repetitionPiece bytes: at least 16 times the same, word for word.
const (
	repetitionWindow = 8 << 10
	repetitionPiece  = repetitionWindow / 16
)

// Repetition returns how many bytes of text come before it begins to repeat itself,
// the first time included; false for a text that does not.
func Repetition(text string) (int, bool) {
	if len(text) < repetitionWindow {
		return 0, false
	}
	period := periodOf(text[len(text)-repetitionWindow:])
	if period > repetitionPiece {
		return 0, false
	}
	start := len(text) - repetitionWindow
	for start > 0 && text[start-1] == text[start-1+period] {
		start--
	}
	return start + period, true
}

// periodOf is the shortest p for which s[i] == s[i+p] throughout, by the failure
// function of Knuth, Morris and Pratt.
func periodOf(s string) int {
	fail := make([]int, len(s))
	for i := 1; i < len(s); i++ {
		k := fail[i-1]
		for k > 0 && s[i] != s[k] {
			k = fail[k-1]
		}
		if s[i] == s[k] {
			k++
		}
		fail[i] = k
	}
	return len(s) - fail[len(s)-1]
}
