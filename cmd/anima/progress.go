package main

import (
	"fmt"
	"io"
)

// progress prints lines. On a terminal it also shows which step is in progress.
type progress struct {
	w     io.Writer
	live  bool
	shown bool
}

func newProgress(a *app) *progress {
	w := a.Out
	if a.json() {
		w = a.Err // standard output is one JSON value
	}
	return &progress{w: w, live: isTerminal(w)}
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

func (p *progress) head(s string) {
	p.clear()
	fmt.Fprintf(p.w, "\n%s\n", s)
}

func (p *progress) line(format string, args ...any) {
	p.clear()
	fmt.Fprintf(p.w, "  "+format+"\n", args...)
}

func (p *progress) waiting(what string) {
	if p.live {
		p.clear()
		fmt.Fprintf(p.w, "  … %s", what)
		p.shown = true
	}
}
