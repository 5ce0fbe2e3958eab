package bus

import "testing"

func TestPattern(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pattern, subject string
		want             bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "a.c", false},
		{"a.b", "a.bc", false},
		{"a.bc", "a.b", false},
		{"a.b", "a", false},
		{"a", "a.b", false},
		{"a.*", "a.bc", true},
		{"a.*", "a", false},
		{"a.*", "a.b.c", false},
		{"*.b", "aa.b", true},
		{"*.b", "aa.c", false},
		{"a.*.c", "a.b.c", true},
		{"a.*.c", "a.b", false},
		{"a.>", "a.b.c", true},
		{"a.>", "a", false},
		{"a.>", "b.a", false},
		{"$JS.API.CONSUMER.MSG.NEXT.S.*", "$JS.API.CONSUMER.MSG.NEXT.S.c", true},
	} {
		if got := patternsOf([]string{test.pattern})[0].matches(test.subject); got != test.want {
			t.Errorf("%q matches %q: got %t, want %t", test.pattern, test.subject, got, test.want)
		}
	}
}
