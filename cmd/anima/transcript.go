package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/anima-run/anima/pkg/api"
)

type sessionExportCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
	File    string `short:"f" help:"Where to write; default is standard output." placeholder:"FILE"`
	Force   bool   `help:"Replace an existing file."`
}

// exported is the output of session export to a file.
type exported struct {
	Session string `json:"session"`
	File    string `json:"file"`
	Lines   int    `json:"lines"`
}

func (c sessionExportCmd) Run(ctx context.Context, a *app) error {
	if c.File == "" {
		return a.transcript(ctx, c.Session, func(l api.TranscriptLine) error { return writeLine(a.Out, l) })
	}
	exists := failure(api.Conflict, c.File+" already exists; it was not changed", "name another file, or replace it with --force")
	if _, err := os.Lstat(c.File); err == nil && !c.Force {
		return exists
	}
	var all bytes.Buffer
	v := exported{Session: c.Session, File: c.File}
	p := newProgress(a)
	err := a.transcript(ctx, c.Session, func(l api.TranscriptLine) error {
		if v.Lines++; v.Lines%500 == 0 {
			p.waiting(fmt.Sprintf("%d lines", v.Lines))
		}
		return writeLine(&all, l)
	})
	p.clear()
	if err == nil {
		err = putNew(c.File, all.Bytes(), c.Force)
	}
	if errors.Is(err, fs.ErrExist) {
		return exists
	}
	if err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) { fmt.Fprintf(w, "%d lines are written to %s\n", v.Lines, v.File) })
}

// transcript reads all lines of a session page by page and calls each for every line.
func (a *app) transcript(ctx context.Context, session string, each func(api.TranscriptLine) error) error {
	for after, more := int64(0), true; more; {
		page, err := ask[api.Transcript](ctx, a, api.GetTranscript{Session: session, After: after})
		if err != nil {
			return err
		}
		for _, l := range page.Lines {
			after = l.Seq
			if err := each(l); err != nil {
				return err
			}
		}
		more = page.More
	}
	return nil
}

type sessionImportCmd struct {
	Agent string `arg:"" help:"The agent of the new session." predictor:"agent"`
	File  string `arg:"" help:"The transcript, one message per line; - reads standard input."`
	ID    string `help:"Idempotency key: a repeated request imports once, and continues where it stopped."`
}

func (c sessionImportCmd) Run(ctx context.Context, a *app) error {
	lines, err := c.lines(a, maxImport)
	if err != nil {
		return err
	}
	id := cmp.Or(c.ID, uuid.NewString())
	v := api.Imported{Cut: []api.CutLine{}}
	first := 1
	p := newProgress(a)
	defer p.clear()
	for i, part := range portions(lines, partLines, partBytes, maxGroup) {
		p.waiting(fmt.Sprintf("%d of %d lines", first-1, len(lines)))
		got, err := ask[api.Imported](ctx, a, api.ImportTranscript{
			Agent: c.Agent, Session: v.Session, First: first, Lines: part, ID: id + "/" + strconv.Itoa(i+1),
		})
		if err != nil && i > 0 {
			return fmt.Errorf("lines up to %d are in session %s; continue with --id %s: %w", first-1, v.Session, id, err)
		}
		if err != nil {
			return a.repeatable(err, "--id", id, "imports once")
		}
		if i == 0 {
			v.Session, v.Agent, v.Run, v.At = got.Session, got.Agent, got.Run, got.At
		}
		v.Turns, v.Kept, v.Cut = v.Turns+got.Turns, v.Kept+got.Kept, append(v.Cut, got.Cut...)
		first += len(part)
	}
	p.clear()
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "session %s of %s: %d turns of %d lines\n", v.Session, v.Agent, v.Turns, v.Kept)
		if len(v.Cut) > 0 {
			table(w, "\nCUT\tWHY\tLINE", v.Cut, api.Page{}, func(l api.CutLine) []any { return []any{l.Line, line(l.Reason, 80), line(l.Text, 60)} })
		}
	})
}

// partLines and partBytes bound one part of an import. partBytes stays below the maximum
// of a message also if the encoding replaces each byte with several. maxImport is the
// maximum size of a file in bytes.
const (
	partLines = api.MaxImportLines
	partBytes = 1 << 20
	maxGroup  = 4 << 20 // bytes of a group that cannot be divided
	maxImport = 1 << 30
)

// lines reads the lines of the transcript, which may have at most that many bytes.
func (c sessionImportCmd) lines(a *app, most int64) ([]string, error) {
	in, err := a.input(c.File)
	if err != nil {
		return nil, failure(api.Invalid, err.Error(), "name a transcript, or - for standard input; anima session export writes one")
	}
	defer func() { _ = in.Close() }() // read only: a Close error loses no data
	name := c.File
	if name == "-" {
		name = "standard input"
	}
	var lines []string
	rest := &io.LimitedReader{R: in, N: most + 1}
	scan := bufio.NewScanner(rest)
	scan.Buffer(nil, maxGroup)
	for scan.Scan() {
		lines = append(lines, scan.Text())
	}
	if err := scan.Err(); errors.Is(err, context.Canceled) {
		return nil, err
	} else if err != nil {
		return nil, failure(api.Invalid, fmt.Sprintf("%s, after line %d: %v", name, len(lines), err), "give one message per line, none longer than 4 MiB")
	}
	if rest.N == 0 {
		return nil, failure(api.Invalid, fmt.Sprintf("%s is larger than %d bytes; nothing was imported", name, most), "divide it: each part becomes a session")
	}
	if strings.TrimSpace(strings.Join(lines, "")) == "" {
		return nil, failure(api.Invalid, name+" has no lines", "give one message per line, in the format of anima session export")
	}
	return lines, nil
}

// portions divides lines into parts such that calls and their results stay together: a
// part begins with a line of the user or the assistant. A group of lines that alone
// exceeds the bounds of a message is divided at those bounds.
func portions(lines []string, most, size, whole int) [][]string {
	var parts [][]string
	begin, opening, bytes := 0, 0, 0 // of the part; index of the last line that may begin another part; size of the part
	for i, l := range lines {
		if opens(l) {
			opening = i
		}
		full := i-begin >= most
		if i > begin && (full || bytes+len(l) > size) {
			at := opening
			if at <= begin && (full || bytes+len(l) > whole) {
				at = i
			}
			if at > begin {
				parts = append(parts, lines[begin:at])
				begin, bytes = at, 0
				for _, b := range lines[at:i] {
					bytes += len(b)
				}
			}
		}
		bytes += len(l)
	}
	return append(parts, lines[begin:])
}

// opens reports whether a part may begin with the line: its role is user or assistant.
func opens(text string) bool {
	var l struct {
		Role string `json:"role"`
	}
	return json.Unmarshal([]byte(text), &l) == nil && (l.Role == "user" || l.Role == "assistant")
}
