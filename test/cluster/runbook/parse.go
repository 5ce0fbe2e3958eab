package runbook

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Block is one block of a page that is run.
type Block struct {
	File     string
	Line     int // of its first line
	Script   string
	Want     string        // expected output, "" for any
	Terminal bool          // runs concurrently with the rest
	Hidden   bool          // a comment, which is not displayed
	Finally  bool          // runs at the end, in a separate shell
	NotRun   string        // reason why it is not run; "": it is run
	Timeout  time.Duration // 0: the default
}

func parseFile(path string) ([]Block, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(filepath.Base(path), text)
}

// Parse returns a page's blocks in their order. A fence in another language of shells is
// an error, so that no command is left untested.
func Parse(file string, text []byte) ([]Block, error) {
	var all []Block
	lines := strings.Split(string(text), "\n")
	at := func(i int) string { return fmt.Sprintf("%s:%d", file, i+1) }
	shown := -1 // index of the block that a text block belongs to
	for i := 0; i < len(lines); i++ {
		line := strings.TrimRight(lines[i], " \t")
		info, fence := strings.CutPrefix(line, "```")
		hidden, comment := strings.CutPrefix(line, "<!-- lab")
		comment = comment && (hidden == "" || hidden[0] == ' ') // not a comment such as <!-- label
		if !fence && !comment {
			if strings.HasPrefix(strings.TrimLeft(line, " \t"), "```") {
				return nil, fmt.Errorf("%s: a fence that is indented; begin it at the margin", at(i))
			}
			continue
		}
		closing := "```"
		if comment {
			closing = "-->"
			if strings.Contains(hidden, closing) {
				return nil, fmt.Errorf("%s: write the commands on lines of their own", at(i))
			}
		}
		start := i
		var body []string
		for i++; i < len(lines) && strings.TrimRight(lines[i], " \t") != closing; i++ {
			body = append(body, lines[i])
		}
		if i == len(lines) {
			return nil, fmt.Errorf("%s: this block has no end %s", at(start), closing)
		}
		b := Block{File: file, Line: start + 2, Script: strings.Join(body, "\n") + "\n"}
		lang, words, _ := strings.Cut(strings.TrimSpace(info), " ")
		if comment {
			lang, words = "sh", hidden
			b.Hidden = true
		}
		switch lang {
		case "sh":
			if err := b.read(words); err != nil {
				return nil, fmt.Errorf("%s: %w", at(start), err)
			}
			all = append(all, b)
			shown = len(all) - 1
			if b.Terminal || b.Hidden || b.NotRun != "" {
				shown = -1
			}
		case "text":
			if shown < 0 {
				return nil, fmt.Errorf("%s: output of what? a text block follows the sh block that prints it", at(start))
			}
			all[shown].Want = strings.TrimRight(strings.Join(body, "\n"), "\n ")
			shown = -1
		case "mermaid", "yaml", "json", "sql":
		default:
			return nil, fmt.Errorf("%s: a block of %q: commands are in sh, what they print in text", at(start), lang)
		}
	}
	return all, nil
}

// read parses the words after sh.
func (b *Block) read(words string) error {
	words = strings.TrimSpace(words)
	if why, ok := strings.CutPrefix(words, "not-run:"); ok {
		if b.NotRun = strings.TrimSpace(why); b.NotRun == "" || b.Hidden {
			return fmt.Errorf("say why it is not run: not-run: REASON")
		}
		return nil
	}
	for _, w := range strings.Fields(words) {
		limit, timed := strings.CutPrefix(w, "timeout=")
		switch {
		case timed:
			d, err := time.ParseDuration(limit)
			if err != nil || d <= 0 {
				return fmt.Errorf("timeout=%s is no time; say timeout=5m", limit)
			}
			b.Timeout = d
		case w == "terminal" && !b.Hidden:
			b.Terminal = true
		case w == "finally" && b.Hidden:
			b.Finally = true
		default:
			return fmt.Errorf("unknown word %q", w)
		}
	}
	return nil
}
