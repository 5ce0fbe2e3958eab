package main

import (
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// programName is the name of the program in its own texts. [app.named] replaces it with
// the name that the user typed.
const programName = "anima"

// mention matches the program's name with the next word in a text: "anima agent list",
// "anima --help", "Usage: anima <command>".
var mention = regexp.MustCompile(`(^|[^\w./-])` + programName + ` (<command>|--[a-z]+|[a-z]+)`)

// named returns a text in which commands begin with the name that the program was started
// with, so that they can be copied: .bin/anima agent list. It must be applied to the
// program's own texts only, never to those of agents.
func (a *app) named(text string) string {
	name := a.name()
	if name == programName || !strings.Contains(text, programName) {
		return text
	}
	return mention.ReplaceAllStringFunc(text, func(found string) string {
		m := mention.FindStringSubmatch(found)
		if m[2][0] >= 'a' && !slices.Contains(a.commands(), m[2]) {
			return found // a sentence about anima, not a command
		}
		return m[1] + name + " " + m[2]
	})
}

// name returns the program's name as the user's shell finds it.
func (a *app) name() string {
	if a.Name == "" {
		return programName
	}
	return shellQuote(a.Name)
}

// commands returns the first words of all commands.
func (a *app) commands() []string {
	if a.words == nil {
		k := kong.Must(&cli{}, kong.Name(programName), kong.Exit(func(int) {}))
		for _, n := range k.Model.Children {
			a.words = append(a.words, n.Name)
		}
	}
	return a.words
}

// renamed is a writer that applies [app.named] to the program's own texts.
type renamed struct {
	w io.Writer
	a *app
}

// Write expects whole lines, as the help printer writes them.
func (r renamed) Write(p []byte) (int, error) {
	if _, err := io.WriteString(r.w, r.a.named(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
