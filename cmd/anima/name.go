package main

import (
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// programName is how texts of the program name it. [app.named] replaces it with
// what the user typed.
const programName = "anima"

// mention is the program's name with the word after it, as texts have them:
// "anima agent list", "anima --help", "Usage: anima <command>".
var mention = regexp.MustCompile(`(^|[^\w./-])` + programName + ` (<command>|--[a-z]+|[a-z]+)`)

// named is a text whose commands begin with the program's name as it was started,
// so that they can be copied: .bin/anima agent list. Only the program's own texts
// are given to it, never those of agents.
func (a *app) named(text string) string {
	name := a.name()
	if name == programName || !strings.Contains(text, programName) {
		return text
	}
	return mention.ReplaceAllStringFunc(text, func(found string) string {
		m := mention.FindStringSubmatch(found)
		if m[2][0] >= 'a' && !slices.Contains(a.commands(), m[2]) {
			return found // a sentence about anima
		}
		return m[1] + name + " " + m[2]
	})
}

// name is the program as the user's shell finds it.
func (a *app) name() string {
	if a.Name == "" {
		return programName
	}
	return word(a.Name)
}

// commands are the first words that the program takes.
func (a *app) commands() []string {
	if a.words == nil {
		k, err := kong.New(&cli{}, kong.Name(programName), kong.Exit(func(int) {}))
		if err != nil {
			panic(err) // the grammar is wrong
		}
		for _, n := range k.Model.Children {
			a.words = append(a.words, n.Name)
		}
	}
	return a.words
}

// renamed writes the program's own texts under the name that it was started by.
type renamed struct {
	w io.Writer
	a *app
}

// Write takes whole lines, as the printer of help gives them.
func (r renamed) Write(p []byte) (int, error) {
	if _, err := io.WriteString(r.w, r.a.named(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
