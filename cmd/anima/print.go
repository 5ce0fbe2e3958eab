package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/wait"
)

// failure returns an error with what the user can do about it; if next is "", the advice
// for the code is printed.
func failure(code api.Code, message, next string, details ...string) *api.Error {
	return &api.Error{Code: code, Message: message, Next: next, Details: details}
}

const outputJSON = "json"

func (a *app) json() bool { return a.cli.Output == outputJSON }

// print writes v as JSON, or as the text that the function writes, by the output format.
func (a *app) print(v any, text func(io.Writer)) error {
	if a.json() {
		return writeJSON(a.Out, v)
	}
	w := tabwriter.NewWriter(plainWriter{a.Out}, 0, 0, 2, ' ', tabwriter.StripEscape)
	text(w)
	return w.Flush()
}

// plainWriter is a writer that applies [plain], because the answers of services have texts
// of agents, models, providers and sellers.
type plainWriter struct{ w io.Writer }

// Write expects whole characters, as the table writer writes them.
func (p plainWriter) Write(data []byte) (int, error) {
	if _, err := io.WriteString(p.w, plain(string(data))); err != nil {
		return 0, err
	}
	return len(data), nil
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// writeLine writes v as one line of JSON.
func writeLine(w io.Writer, v any) error {
	data, err := api.Encode(v)
	if err == nil {
		_, err = w.Write(append(data, '\n'))
	}
	return err
}

// show sends a request and prints the answer.
func show[Resp any](ctx context.Context, a *app, req api.Message, text func(io.Writer, Resp)) error {
	_, err := showAnswer(ctx, a, req, text)
	return err
}

// showAnswer is show for a command that uses the answer.
func showAnswer[Resp any](ctx context.Context, a *app, req api.Message, text func(io.Writer, Resp)) (Resp, error) {
	v, err := ask[Resp](ctx, a, req)
	if err == nil {
		err = a.print(v, func(w io.Writer) { text(w, v) })
	}
	return v, err
}

// listOf is show for a list: that of an agent, or of all agents if agent is "". The services
// answer with an empty list also for an agent that does not exist, which is an error here: a
// misspelt name must not look like an agent without entries.
func listOf[Resp any](ctx context.Context, a *app, agent string, req api.Message, entries func(Resp) int, text func(io.Writer, Resp)) error {
	v, err := ask[Resp](ctx, a, req)
	if err == nil && agent != "" && entries(v) == 0 {
		if _, missing := ask[api.Agent](ctx, a, api.GetAgent{Agent: agent}); api.CodeOf(missing) == api.NotFound {
			err = missing
		}
	}
	if err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) { text(w, v) })
}

// row writes the cells as a line of a table.
func row(w io.Writer, cells ...any) {
	for i, c := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, c)
	}
	fmt.Fprintln(w)
}

// inCell replaces what would end a cell or a row of a table.
var inCell = strings.NewReplacer("\t", " ", "\n", " ", "\v", " ", "\f", " ")

// table writes a header, a row for each entry of a list, and whether the list goes on.
func table[E any](w io.Writer, header string, all []E, page api.Page, cells func(E) []any) {
	fmt.Fprintln(w, header)
	for _, e := range all {
		columns := cells(e)
		for i, c := range columns {
			if text, ok := c.(string); ok {
				columns[i] = inCell.Replace(text)
			}
		}
		row(w, columns...)
	}
	switch { // with -o json, the fields more and next have that
	case page.More && page.Next != "":
		fmt.Fprintf(w, "… more: --after %s\n", page.Next)
	case page.More:
		fmt.Fprintf(w, "… more: --limit N, at most %d\n", api.MaxPage)
	}
}

// fields writes a row for each pair of a name and a value, except for empty texts.
func fields(w io.Writer, pairs ...any) {
	for pair := range slices.Chunk(pairs, 2) {
		if pair[1] != "" {
			row(w, pair...)
		}
	}
}

// paging holds the flags of a list that has pages.
type paging struct {
	After string `help:"Continue the list after this place, which the previous page printed at its end." placeholder:"PLACE"`
	Limit int    `help:"How many, at most 1000." default:"50"`
}

// watching holds the flag of a command that [run] can repeat.
type watching struct {
	Watch bool `short:"w" help:"Print the output again after each change, until interrupted."`
}

func (c watching) watched() bool { return c.Watch }

// watchEvery is the interval between two requests of a watched output.
const watchEvery = 2 * time.Second

// repeat runs a command until ctx ends, and prints its whole output each time that it
// differs from the previous one. After the first output it continues over a time in which
// a service or the server does not answer.
func (a *app) repeat(ctx context.Context, once func() error) error {
	out := a.Out
	defer func() { a.Out = out }()
	for last, away := "", false; ; {
		var now bytes.Buffer
		a.Out = &now
		err := once()
		switch text := now.String(); {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // interrupted: the output may be incomplete
		case last != "" && api.CodeOf(err) == api.Unavailable:
			if !away {
				fmt.Fprintf(a.Err, "  (%s; trying again)\n", line(api.Wire(err).Message, 200))
			}
			away = true
		case err != nil:
			return err
		case text != last:
			if _, err := io.WriteString(out, text); err != nil {
				return err
			}
			last, away = text, false
		default:
			away = false
		}
		if wait.For(ctx, watchEvery) != nil {
			return nil
		}
	}
}

// plain replaces control characters other than newline and tab, and those that change the
// direction of text, so that text of agents and models cannot control the terminal or show
// itself in another order than it has.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || r >= '\u202A' && r <= '\u202E' || r >= '\u2066' && r <= '\u2069' {
			return '\uFFFD'
		}
		return r
	}, s)
}

// verbatim makes a text plain and protects it from the table writer of print, which would
// replace its tabs.
func verbatim(s string) string {
	return "\xff" + plain(s) + "\xff" // tabwriter.Escape, which is not in plain text
}

// line returns the first line of a text, cut to n characters and made plain. It has no
// tabs, which would begin another column of a table.
func line(s string, n int) string {
	s, _, _ = strings.Cut(strings.TrimSpace(s), "\n")
	s = inCell.Replace(s)
	if r := []rune(s); len(r) > n {
		s = string(r[:n-1]) + "…"
	}
	return plain(s)
}

// indent makes a text plain and indents its continuation lines to the second column of a
// table.
func indent(s string) string { return strings.ReplaceAll(plain(s), "\n", "\n\t") }

func yes(v bool) string {
	if v {
		return "yes"
	}
	return "no"
}

// when formats a Unix time in microseconds for tables and texts of the command line: RFC
// 3339 in UTC. Zero is "-".
func when(micros int64) string {
	if micros == 0 {
		return "-"
	}
	return time.UnixMicro(micros).UTC().Format(time.RFC3339)
}

// ago formats the time since a Unix time in microseconds.
func ago(micros int64, now time.Time) string {
	return now.Sub(time.UnixMicro(micros)).Round(time.Second).String() + " ago"
}

// clockTime formats the time of day of an event that is printed while it happens.
func clockTime(micros int64) string { return time.UnixMicro(micros).UTC().Format("15:04:05 UTC") }

// shownError is an error that was already printed; it only determines the exit code.
type shownError struct{ error }

func (e *shownError) Unwrap() error { return e.error }

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
