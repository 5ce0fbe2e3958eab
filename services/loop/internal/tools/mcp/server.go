package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/textproto"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/safehttp"
)

// Server is one MCP server of an agent: a program with arguments and environment, or a
// URL with headers. Its file has the form of an entry of mcpServers in the configuration
// of other MCP clients.
type Server struct {
	Name    string                   `json:"-"`
	Command string                   `json:"command"`
	Args    []string                 `json:"args"`
	Env     map[string]config.Secret `json:"env"`
	URL     config.Secret            `json:"url"` // may contain a key in its query
	Headers map[string]config.Secret `json:"headers"`
}

var (
	serverName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$`)
	program    = regexp.MustCompile(`^[A-Za-z0-9._/@:=+,-]+$`)
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	headerName = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
)

// ours are headers that the protocol sets, or that carry the trace context. A server's
// file may not set them.
var ours = []string{
	"Accept", "Content-Type", "Content-Length", "Connection", "Host", "Transfer-Encoding", "Upgrade", "Te", "Trailer",
	"Mcp-Session-Id", "Mcp-Protocol-Version", "Last-Event-Id", "Traceparent", "Tracestate", "Baggage",
}

// maxStored is the maximum size of a server's file, in bytes.
const maxStored = 64 << 10

// read parses the text of a server's file. Its errors contain no values.
func read(name string, text []byte, out safehttp.Options) (Server, error) {
	s := Server{Name: name}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&s); err != nil {
		return s, errors.New("it is not a JSON object of command, args and env, or of url and headers")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return s, errors.New("it is more than one JSON value")
	}
	return s, s.check(out)
}

// check returns an error without values if the server cannot be used.
func (s Server) check(out safehttp.Options) error {
	switch {
	case !serverName.MatchString(s.Name):
		return errors.New("a server's name has 1 to 32 letters, digits, _ and -, and begins with a letter or digit")
	case (s.Command == "") == (s.URL == ""):
		return errors.New("it needs either command or url")
	case s.URL != "" && len(s.Args)+len(s.Env) > 0:
		return errors.New("args and env belong to a command, not to a url")
	case s.Command != "" && len(s.Headers) > 0:
		return errors.New("headers belong to a url, not to a command")
	case len(s.Args) > 64 || len(s.Env) > 64 || len(s.Headers) > 64:
		return errors.New("it has more than 64 args, env or headers")
	case s.Command != "" && !program.MatchString(s.Command):
		return errors.New("command is one program, without spaces and signs of a shell; its arguments go into args")
	case slices.ContainsFunc(s.Args, func(arg string) bool { return strings.ContainsRune(arg, 0) }):
		return errors.New("an arg holds U+0000")
	}
	if s.URL != "" {
		if _, err := out.Parse(s.URL.Reveal()); err != nil {
			return fmt.Errorf("url: %w", err)
		}
	}
	for name, value := range s.Env {
		if !envName.MatchString(name) || strings.ContainsRune(value.Reveal(), 0) {
			return fmt.Errorf("env %.40q: a name has letters, digits and _, a value no U+0000", name)
		}
	}
	for name, value := range s.Headers {
		switch {
		case !headerName.MatchString(name) || strings.ContainsAny(value.Reveal(), "\r\n\x00"):
			return fmt.Errorf("header %.40q is not valid", name)
		case slices.Contains(ours, textproto.CanonicalMIMEHeaderKey(name)):
			return fmt.Errorf("header %s is reserved for the protocol", name)
		}
	}
	return nil
}

func revealed(m map[string]config.Secret) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = v.Reveal()
	}
	return out
}

// redact replaces the server's secrets in a text that comes from the server or from a
// library, because a server may repeat what it received. Values of less than 6 bytes are
// not replaced, because they occur in ordinary text.
func (s Server) redact(text string) string {
	var pairs []string
	add := func(v string) {
		if len(v) >= 6 {
			pairs = append(pairs, v, "***")
		}
	}
	for _, v := range s.Headers {
		add(v.Reveal())
		if _, token, ok := strings.Cut(v.Reveal(), " "); ok { // as in "Bearer …"
			add(token)
		}
	}
	for _, v := range s.Env {
		add(v.Reveal())
	}
	if base, query, ok := strings.Cut(s.URL.Reveal(), "?"); ok {
		add(query)
		for pair := range strings.SplitSeq(query, "&") {
			_, v, _ := strings.Cut(pair, "=")
			add(v)
		}
		add(base + "?" + query)
	}
	if len(pairs) == 0 {
		return text
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// registry is the folder of servers, <dir>/<agent>/<server>.json with mode 0600. Each
// server has its own file, so concurrent writes of different servers do not overwrite
// each other.
type registry struct {
	dir string
	out safehttp.Options
}

// fault is a file of a server that cannot be used.
type fault struct{ name, reason string }

// list returns the servers of an agent, sorted by name, at most MaxServers.
func (r registry) list(agent string) (all []Server, faults []fault, err error) {
	entries, err := os.ReadDir(filepath.Join(r.dir, filepath.Base(agent)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("servers of %s: %w", agent, err)
	}
	for _, e := range entries { // sorted by name
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || strings.HasPrefix(name, ".") {
			continue
		}
		if len(all) == MaxServers {
			faults = append(faults, fault{name, fmt.Sprintf("an agent has at most %d servers", MaxServers)})
			continue
		}
		s, err := r.get(agent, name)
		if err != nil {
			faults = append(faults, fault{name, err.Error()})
			continue
		}
		all = append(all, s)
	}
	return all, faults, nil
}

func (r registry) get(agent, name string) (Server, error) {
	f, err := os.Open(filepath.Join(r.dir, filepath.Base(agent), filepath.Base(name)+".json"))
	if err != nil {
		return Server{}, errors.New("its file cannot be opened")
	}
	defer f.Close() // read only
	text, err := io.ReadAll(io.LimitReader(f, maxStored+1))
	switch {
	case err != nil:
		return Server{}, errors.New("its file cannot be read")
	case len(text) > maxStored:
		return Server{}, fmt.Errorf("its file has more than %d bytes", maxStored)
	}
	return read(name, text, r.out)
}

// put writes a server's file atomically: concurrent readers, and readers after a crash,
// see the old or the new content.
func (r registry) put(agent string, s Server) error {
	text, err := json.MarshalIndent(struct {
		Command string            `json:"command,omitempty"`
		Args    []string          `json:"args,omitempty"`
		Env     map[string]string `json:"env,omitempty"`
		URL     string            `json:"url,omitempty"`
		Headers map[string]string `json:"headers,omitempty"`
	}{s.Command, s.Args, revealed(s.Env), s.URL.Reveal(), revealed(s.Headers)}, "", "  ")
	if err == nil {
		err = r.write(filepath.Join(r.dir, filepath.Base(agent)), s.Name+".json", append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write server %s: %w", s.Name, err)
	}
	return nil
}

func (registry) write(dir, name string, text []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, ".server-*") // mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(text)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}
