package provider

// A degenerate model repeats the same words until its output limit. A text is treated as
// such a loop when its last repetitionWindow bytes are repetitions of a piece of at most
// repetitionPiece bytes: at least 16 exact copies.
const (
	repetitionWindow = 8 << 10
	repetitionPiece  = repetitionWindow / 16
)

// Repetition returns the length of text up to the end of the first copy of the repeated
// piece, in bytes. It returns false if text does not repeat itself.
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

// periodOf returns the smallest p with s[i] == s[i+p] for all i, by the failure function
// of Knuth, Morris and Pratt. It takes linear time.
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
