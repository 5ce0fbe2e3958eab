package main

import (
	"bufio"
	"bytes"
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
	"github.com/anima-run/anima/pkg/bus"
)

type sessionExportCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
	File    string `short:"f" help:"Where to write; default is standard output." placeholder:"FILE"`
	Force   bool   `help:"Replace an existing file."`
}

// Help returns the text that --help prints below the usage.
func (sessionExportCmd) Help() string {
	return `Writes all messages of the session, one per line. A file is written completely or not
at all.

Examples:
  anima session export lucky-main | tail -1
  anima session export lucky-main -f lucky.jsonl`
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
	if _, err := os.Lstat(c.File); err == nil && !c.Force {
		return fileThere(c.File)
	}
	var all bytes.Buffer
	v := exported{Session: c.Session, File: c.File}
	err := a.transcript(ctx, c.Session, func(l api.TranscriptLine) error {
		v.Lines++
		return writeLine(&all, l)
	})
	if err != nil {
		return err
	}
	put := createFile
	if c.Force {
		put = writeFile
	}
	switch err := put(c.File, all.Bytes()); {
	case errors.Is(err, fs.ErrExist):
		return fileThere(c.File)
	case err != nil:
		return &api.Error{Code: api.Invalid, Message: err.Error(), Next: "name a file that you may write"}
	}
	return a.print(v, func(w io.Writer) { fmt.Fprintf(w, "%d lines are written to %s\n", v.Lines, v.File) })
}

func fileThere(file string) error {
	return &api.Error{Code: api.Conflict, Message: file + " already exists; it was not changed", Next: "name another file, or replace it with --force"}
}

func writeLine(w io.Writer, l api.TranscriptLine) error {
	data, err := api.Encode(l)
	if err != nil {
		return err
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// transcript reads all lines of a session page by page and calls each for every line.
func (a *app) transcript(ctx context.Context, session string, each func(api.TranscriptLine) error) error {
	b, done, err := a.bus()
	if err != nil {
		return err
	}
	defer done()
	for after, more := int64(0), true; more; {
		page, err := callFor[api.Transcript](ctx, b, api.GetTranscript{Session: session, After: after})
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

// callFor sends one of several requests on a connection, with its own timeout of
// answerTimeout.
func callFor[Resp any](ctx context.Context, b *bus.Bus, req api.Message) (Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return bus.Call[Resp](ctx, b, req)
}

type sessionImportCmd struct {
	Agent string `arg:"" help:"The agent of the new session." predictor:"agent"`
	File  string `arg:"" help:"The transcript, one message per line; - reads standard input."`
	ID    string `help:"Idempotency key: a repeated request imports once, and continues where it stopped."`
}

// Help returns the text that --help prints below the usage.
func (sessionImportCmd) Help() string {
	return `A new session is created from the lines. Later turns have them in their prompts; tool
calls in the lines are not executed. Damaged lines are omitted and listed: invalid
JSON, unknown roles, decreasing times, results without a call, calls without a result.

Examples:
  anima session import lucky lucky.jsonl
  anima session export lucky-main | anima session import nova -`
}

func (c sessionImportCmd) Run(ctx context.Context, a *app) error {
	lines, err := c.lines(a.In)
	if err != nil {
		return err
	}
	b, done, err := a.bus()
	if err != nil {
		return err
	}
	defer done()
	if c.ID == "" {
		c.ID = uuid.NewString()
	}
	v := api.Imported{Cut: []api.CutLine{}}
	parts := portions(lines, partLines, partBytes, maxGroup)
	first := 1
	for i, p := range parts {
		got, err := callFor[api.Imported](ctx, b, api.ImportTranscript{
			Agent: c.Agent, Session: v.Session, First: first, Lines: p, ID: c.ID + "/" + strconv.Itoa(i+1),
		})
		if err != nil && i > 0 {
			return fmt.Errorf("lines up to %d are in session %s; continue with --id %s: %w", first-1, v.Session, c.ID, err)
		}
		if err != nil {
			return err
		}
		if i == 0 {
			v.Session, v.Agent, v.Run, v.At = got.Session, got.Agent, got.Run, got.At
		}
		v.Turns, v.Kept, v.Cut = v.Turns+got.Turns, v.Kept+got.Kept, append(v.Cut, got.Cut...)
		first += len(p)
	}
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "session %s of %s: %d turns of %d lines\n", v.Session, v.Agent, v.Turns, v.Kept)
		if len(v.Cut) > 0 {
			fmt.Fprintf(w, "\nCUT\tWHY\tLINE\n")
		}
		for _, l := range v.Cut {
			fmt.Fprintf(w, "%d\t%s\t%s\n", l.Line, line(l.Reason, 80), line(l.Text, 60))
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

func (c sessionImportCmd) lines(stdin io.Reader) ([]string, error) {
	from, name := stdin, "standard input"
	if c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return nil, &api.Error{Code: api.Invalid, Message: err.Error(), Next: "name a transcript, or - for standard input; anima session export writes one"}
		}
		defer func() { _ = f.Close() }() // read only: a Close error loses no data
		from, name = f, c.File
	}
	var lines []string
	scan := bufio.NewScanner(io.LimitReader(from, maxImport))
	scan.Buffer(nil, maxGroup)
	for scan.Scan() {
		lines = append(lines, scan.Text())
	}
	if err := scan.Err(); err != nil {
		return nil, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%s, after line %d: %v", name, len(lines), err), Next: "give one message per line, none longer than 4 MiB"}
	}
	if strings.TrimSpace(strings.Join(lines, "")) == "" {
		return nil, &api.Error{Code: api.Invalid, Message: name + " has no lines", Next: "give one message per line, in the format of anima session export"}
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
