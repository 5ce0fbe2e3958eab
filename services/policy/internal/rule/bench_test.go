package rule_test

import (
	"strings"
	"testing"

	"github.com/anima-run/anima/services/policy/internal/rule"
)

// BenchmarkEvaluate measures an evaluation. The goal is 50 µs without I/O
// (docs/reference/policy.md, Limits).
func BenchmarkEvaluate(b *testing.B) {
	engine := standard(b)
	for _, c := range []struct {
		name string
		in   rule.Input
	}{
		{"read_file", call("read_file", map[string]any{"path": "docs/readme.md"})},
		{"write_file", call("write_file", map[string]any{"path": "docs/readme.md", "content": strings.Repeat("text ", 200)})},
		{"send_message", call("send_message", map[string]any{"to_address": "0x" + strings.Repeat("a", 40), "content": "hi"})},
		{"exec_small", call("exec", map[string]any{"command": "git status"})},
		{"exec_pipeline", call("exec", map[string]any{"command": `for f in src/*.ts; do grep -n "export" "$f" | head -5 >> out.txt; done && wc -l out.txt`})},
		{"exec_nested", call("exec", map[string]any{"command": `timeout 30 sh -c 'cd build && make -j4 2>&1 | tee log.txt; rm -rf tmp/*'`})},
		{"exec_denied", call("exec", map[string]any{"command": "rm -rf /"})},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d := engine.Evaluate(c.in); d.Code == rule.RuleError {
					b.Fatal(d.Err)
				}
			}
		})
	}
}
