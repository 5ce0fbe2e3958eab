package prompt

import (
	"fmt"
	"testing"

	"github.com/anima-run/anima/services/loop/internal/token"
)

// BenchmarkFit makes the prompt of a session of 60 turns with results of size bytes,
// whose texts were counted before.
func BenchmarkFit(b *testing.B) {
	for _, size := range []int{200, 9_000} {
		b.Run(fmt.Sprintf("result=%d", size), func(b *testing.B) {
			c, in := token.New(), input(200_000, history(60, size))
			in.Layers = append(in.Layers, Layer{Name: "manual", Text: Manual, Budget: 2_500})
			b.ReportAllocs()
			for b.Loop() {
				Fit(c, in)
			}
		})
	}
}
