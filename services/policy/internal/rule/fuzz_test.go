package rule_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// FuzzEvaluate tests that no input makes a rule panic, and that every allowed call has
// passed all rules.
func FuzzEvaluate(f *testing.F) {
	for _, s := range []string{
		`{"command":"ls -la | wc"}`, `{"command":"sh -c \"$x\" <<EOF\n${a[1]}\nEOF"}`, `{"path":"../~/[a-"}`, `{"command":"x=$'\\u0' {a,{b,c}} ((1)) [[ a ]]"}`,
		`{"command":"a=$a$a$a; $a"}`, `null`, `{"path":1}`, `{"command":"find . -exec \\; kill -1"}`, `{"command":"timeout flock -c env -S xargs sed -e"}`,
	} {
		f.Add("exec", []byte(s))
		f.Add("write_file", []byte(s))
	}
	b := standard(f)
	f.Fuzz(func(t *testing.T, tool string, args []byte) {
		in := call(tool, nil)
		in.Args = args
		d := b.Evaluate(in)
		if d.Err != nil {
			t.Fatalf("%s %q: %v", tool, args, d.Err)
		}
		if again := b.Evaluate(in); again.Code != d.Code || again.Message != d.Message {
			t.Fatalf("%s %q: got %s %q, then %s %q", tool, args, d.Code, d.Message, again.Code, again.Message)
		}
	})
}

func FuzzCommand(f *testing.F) {
	for _, s := range []string{
		"rm -rf \"$x\"/..", "x=(a b); echo ${x[@]:1}", "cat <<< $'\\x41'", "a() { b; }; a | a", "select x in a; do :; done", "let x=1", "declare -A m=([a]=b)",
		"echo ${!x*} ${x@Q} ${#x} ${x^^}", "sed -e", "awk -f", "xargs -I", "git -c", "env -u", "find -exec", "dd of=", "cat {a..z} {1..9..2}", "! time -p ls", "~+/x ~-",
	} {
		f.Add(s)
	}
	b := standard(f)
	f.Fuzz(func(t *testing.T, command string) {
		raw, err := json.Marshal(map[string]string{"command": command})
		if err != nil {
			t.Fatal(err)
		}
		in := call("exec", nil)
		in.Args, in.Network = raw, true
		if d := b.Evaluate(in); d.Err != nil {
			t.Fatalf("%q: %v", command, d.Err)
		}
	})
}

// TestLargestCommands tests that commands of the maximum size are judged in bounded time
// and stack.
func TestLargestCommands(t *testing.T) {
	t.Parallel()
	b := standard(t)
	const size = 32 << 10
	fill := func(s string) string { return strings.Repeat(s, size/len(s)) }
	for name, command := range map[string]string{
		"subshells":        fill("("),
		"closed shells":    strings.Repeat("( ", size/4-4) + "ls" + strings.Repeat(" )", size/4-4),
		"substitutions":    strings.Repeat("$(", size/3-9) + "ls" + strings.Repeat(")", size/3-9),
		"quoted":           strings.Repeat(`"$(`, size/5-9) + "ls" + strings.Repeat(`)"`, size/5-9),
		"braces":           "echo " + strings.Repeat("{a,", size/4) + strings.Repeat("}", size/4),
		"brace product":    "echo " + fill("{a,b}")[:size-10],
		"brace range":      "echo {1..1000000000}",
		"doubling":         "a=xxxxxxxx;" + strings.Repeat("a=$a$a;b=$a$a;", size/16),
		"chain doubling":   chain(200),
		"long variable":    "a=" + strings.Repeat("x", 4000) + "; echo " + strings.Repeat("$a", 14_000),
		"pipes":            fill("a|") + "a",
		"functions":        fill("a(){ ")[:size-8],
		"nested function":  strings.Repeat("a(){ ", 4000) + "ls" + strings.Repeat("; }", 4000),
		"ifs":              strings.Repeat("if a;then ", 2000) + "b" + strings.Repeat(";fi", 2000),
		"arithmetic":       "echo $((" + strings.Repeat("(", 8000) + "1" + strings.Repeat(")", 8000) + "))",
		"parens":           strings.Repeat("((", 8000),
		"back quotes":      fill("`"),
		"redirects":        "ls " + fill(">a ")[:size-8],
		"here-documents":   fill("<<a\n"),
		"words":            "cat " + fill("a ")[:size-8],
		"globs":            "cat " + fill("a*b ")[:size-8],
		"one glob":         "cat " + fill("*a")[:size-8],
		"databases":        fill("sqlite3 x|") + "sqlite3 x",
		"assignments":      fill("a=b "),
		"folders":          "cd a; cd b; cd c; cd d; cd e; cat " + fill("a*b "),
		"folder changes":   fill("cd a;"),
		"filters of find":  "find " + fill("-name a -delete "),
		"commands of find": "find " + strings.Repeat("-name a ", 30) + fill("-exec rm {} ; "),
		"options":          "curl " + fill("-aaaaaaaaa "),
		"long words":       longWords,
		"braces of values": "a=" + strings.Repeat("x", 4000) + "; cat " + fill(`"$a$a$a$a$a$a"{b,c}{b,c}{b,c}{b,c}{b,c} `),
		"appended values":  "b=" + strings.Repeat("x", 4000) + "; b=" + strings.Repeat("y", 4000) + ";" + fill(`a+="$b$b$b$b$b";`),
		"nested pipes":     strings.Repeat("a|{ ", 1500) + "a" + strings.Repeat(";}", 1500),
		"nested find":      "find . " + strings.Repeat("-name a ", 30) + "-exec sh -c 'find . " + strings.Repeat("-name b ", 30) + "-exec sh -c \": " + strings.Repeat("x ", 14_000) + "\" \\;' \\;",
		"both readings":    nested(7, strings.Repeat("a=b ", 7000)),
		"tests":            fill("[[ a ]];"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(command) > size {
				command = command[:size]
			}
			if d := judge(b, command); d.Err != nil {
				t.Error(d.Err)
			}
		})
	}
}

// nested returns a script in n shells within each other, each with a command that has two
// readings.
func nested(n int, script string) string {
	for i := range n {
		script = fmt.Sprintf("[[ a ]]\nsh <<'E%d'\n%s\nE%d\n", i, script, i)
	}
	return script
}

func chain(n int) string {
	var s strings.Builder
	s.WriteString("v0=xxxxxxxx;")
	name := func(i int) string { return "v" + strings.Repeat("i", i) }
	s.WriteString(name(0) + "=xxxxxxxx;")
	for i := range n {
		s.WriteString(name(i+1) + "=$" + name(i) + "$" + name(i) + ";")
	}
	return s.String()
}
