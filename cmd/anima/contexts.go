package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// savedContext is a context: an anima that the commands can connect to, with a name that the
// user chose. Its secrets are written to the file of contexts and nowhere else.
type savedContext struct {
	URL   string `json:"url"`
	Token string `json:"token,omitempty"`
	Creds string `json:"creds,omitempty"` // path of a file
	NKey  string `json:"nkey,omitempty"`
	CA    string `json:"ca,omitempty"` // path of a file
}

// contextList is the content of the file of contexts.
type contextList struct {
	Selected string                  `json:"selected,omitempty"`
	Contexts map[string]savedContext `json:"contexts"`
}

const contextsFile = "contexts.json"

// configDir returns the user's folder for settings of anima.
func (a *app) configDir() (string, error) {
	if v, ok := a.Lookup("XDG_CONFIG_HOME"); ok && v != "" {
		return filepath.Join(v, "anima"), nil
	}
	home, ok := a.Lookup("HOME")
	if !ok || home == "" {
		return "", &api.Error{Code: api.Invalid, Message: "HOME is not set: contexts cannot be stored", Next: "set HOME or XDG_CONFIG_HOME"}
	}
	return filepath.Join(home, ".config", "anima"), nil
}

// contexts reads the file of contexts. A missing file is an empty list. A file that other
// users may read is refused, because it holds credentials.
func (a *app) contexts() (contextList, error) {
	out := contextList{Contexts: map[string]savedContext{}}
	dir, err := a.configDir()
	if err != nil {
		return out, err
	}
	file := filepath.Join(dir, contextsFile)
	info, err := os.Stat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("contexts: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return out, &api.Error{Code: api.Denied, Message: "other users can read " + file + ", which holds credentials", Next: "chmod 600 " + file}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return out, fmt.Errorf("contexts: %w", err)
	}
	if err := json.Unmarshal(data, &out); err != nil {
		return out, &api.Error{Code: api.Invalid, Message: file + " is not in the format of anima context", Next: "correct it, or remove it and add the contexts again with anima context add"}
	}
	if out.Contexts == nil {
		out.Contexts = map[string]savedContext{}
	}
	return out, nil
}

// saveContexts writes the file of contexts atomically: a reader finds the old or the new
// content.
func (a *app) saveContexts(p contextList) error {
	dir, err := a.configDir()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	if err := writeFile(filepath.Join(dir, contextsFile), append(data, '\n')); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	return nil
}

// selectedContext returns the context that a command uses and its name; an empty name
// means none. The order of precedence is a URL, a named context, a named data folder, and
// the selected context.
func (a *app) selectedContext() (string, savedContext, error) {
	if a.urlNamed() {
		return "", savedContext{}, nil
	}
	name := a.cli.Context
	if name == "" {
		name, _ = a.Lookup("ANIMA_CONTEXT")
	}
	data, _ := a.Lookup("ANIMA_DATA")
	if name == "" && (a.cli.Data != "" || data != "") {
		return "", savedContext{}, nil
	}
	if _, err := a.configDir(); err != nil && name == "" {
		return "", savedContext{}, nil //nolint:nilerr // without a folder for settings there are no contexts
	}
	all, err := a.contexts()
	if err != nil {
		return "", savedContext{}, err
	}
	if name == "" {
		name = all.Selected
	}
	if name == "" {
		return "", savedContext{}, nil
	}
	p, err := all.named(name)
	return name, p, err
}

func (p contextList) named(name string) (savedContext, error) {
	v, ok := p.Contexts[name]
	if !ok {
		return v, &api.Error{Code: api.NotFound, Message: "there is no context " + name, Next: "anima context list lists the contexts; anima context add creates one"}
	}
	return v, nil
}

type contextCmd struct {
	Add    contextAddCmd    `cmd:"" help:"Add a context, or change one."`
	List   contextListCmd   `cmd:"" help:"List the contexts."`
	Select contextSelectCmd `cmd:"" help:"Use a context for all commands that name none."`
	Show   contextShowCmd   `cmd:"" help:"Show a context without its secrets."`
	Remove contextRemoveCmd `cmd:"" help:"Remove a context."`
}

type contextAddCmd struct {
	Name      string `arg:"" help:"The name: letters, digits, - and _."`
	URL       string `arg:"" help:"Its NATS: nats://host:4222, tls://host:4222."`
	TokenFile string `help:"File with its token; - reads standard input." placeholder:"FILE"`
	Creds     string `help:"File with NATS credentials." type:"path" placeholder:"FILE"`
	NKeyFile  string `name:"nkey-file" help:"File with the operator's nkey seed; - reads standard input." placeholder:"FILE"`
	CA        string `name:"ca" help:"File with the certificate authority of its servers." type:"path" placeholder:"FILE"`
	Select    bool   `help:"Select it."`
}

// Help returns the text that --help prints below the usage.
func (contextAddCmd) Help() string {
	return `Contexts are stored in ~/.config/anima/contexts.json, which only its owner can read. A
command uses the first of these that is set: --nats or ANIMA_NATS_URL, --context,
ANIMA_CONTEXT, --data or ANIMA_DATA, the selected context. Otherwise it uses the
anima up of this machine.

Examples:
  anima context add prod tls://nats.example.com:4222 --nkey-file operator.nk --select
  anima context add lab nats://127.0.0.1:4222 --token-file token`
}

// maxSecret is the maximum number of bytes that is read of a file with a secret.
const maxSecret = 16 << 10

func (c contextAddCmd) Run(a *app) error {
	if !api.ValidKey(c.Name) {
		return &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%q cannot be the name of a context", plain(c.Name)), Next: "use letters, digits, - and _"}
	}
	if !strings.Contains(c.URL, "://") {
		return &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%q is not the URL of a NATS server", plain(bus.RedactURL(c.URL))), Next: "write nats://host:4222 or tls://host:4222"}
	}
	all, err := a.contexts()
	if err != nil {
		return err
	}
	p := savedContext{URL: c.URL, Creds: c.Creds, CA: c.CA}
	if p.Token, err = a.secret(c.TokenFile); err != nil {
		return err
	}
	if p.NKey, err = a.secret(c.NKeyFile); err != nil {
		return err
	}
	all.Contexts[c.Name] = p
	if c.Select {
		all.Selected = c.Name
	}
	if err := a.saveContexts(all); err != nil {
		return err
	}
	return a.print(p.view(c.Name, all.Selected), func(w io.Writer) { fmt.Fprintf(w, "context %s is %s\n", c.Name, bus.RedactURL(p.URL)) })
}

// secret reads a secret from a file; it returns "" if no file is named. A file without a
// secret and a file of more than maxSecret bytes are errors.
func (a *app) secret(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	in := a.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", &api.Error{Code: api.Invalid, Message: err.Error(), Next: "name a file that holds the secret, or - for standard input"}
		}
		defer func() { _ = f.Close() }() // read only: a Close error loses no data
		in = f
	}
	data, err := io.ReadAll(io.LimitReader(in, maxSecret+1))
	if err != nil {
		return "", fmt.Errorf("secret: %w", err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" || len(data) > maxSecret {
		return "", &api.Error{
			Code: api.Invalid, Message: fmt.Sprintf("%s holds no secret: it is empty or larger than %d bytes", file, maxSecret),
			Next: "name the file with the token or the seed; only one of --token-file and --nkey-file can be standard input",
		}
	}
	return text, nil
}

// contextView is a context without its secrets.
type contextView struct {
	Name     string `json:"name"`
	Selected bool   `json:"selected"`
	URL      string `json:"url"`
	Auth     string `json:"auth"` // none, token, creds or nkey
	Creds    string `json:"creds,omitempty"`
	CA       string `json:"ca,omitempty"`
}

func (p savedContext) view(name, selected string) contextView {
	v := contextView{Name: name, Selected: name == selected, URL: bus.RedactURL(p.URL), Auth: "none", Creds: p.Creds, CA: p.CA}
	switch {
	case p.NKey != "":
		v.Auth = "nkey"
	case p.Creds != "":
		v.Auth = "creds"
	case p.Token != "":
		v.Auth = "token"
	}
	return v
}

type contextListCmd struct{}

func (contextListCmd) Run(a *app) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	v := struct {
		Contexts []contextView `json:"contexts"`
	}{[]contextView{}}
	for _, name := range slices.Sorted(maps.Keys(all.Contexts)) {
		v.Contexts = append(v.Contexts, all.Contexts[name].view(name, all.Selected))
	}
	return a.print(v, func(w io.Writer) {
		fmt.Fprintln(w, "CONTEXT\tSELECTED\tNATS\tCREDENTIALS")
		for _, c := range v.Contexts {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", c.Name, yes(c.Selected), plain(c.URL), c.Auth)
		}
	})
}

type contextSelectCmd struct {
	Name string `arg:"" optional:"" help:"The context; none: use the anima up of this machine." predictor:"context"`
}

func (c contextSelectCmd) Run(a *app) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	if c.Name != "" {
		if _, err := all.named(c.Name); err != nil {
			return err
		}
	}
	all.Selected = c.Name
	if err := a.saveContexts(all); err != nil {
		return err
	}
	return a.print(map[string]string{"selected": c.Name}, func(w io.Writer) { fmt.Fprintf(w, "selected: %s\n", or(c.Name)) })
}

type contextShowCmd struct {
	Name string `arg:"" optional:"" help:"The context; default is the one that commands use now." predictor:"context"`
}

func (c contextShowCmd) Run(a *app) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	if c.Name == "" {
		if c.Name, _, err = a.selectedContext(); err != nil {
			return err
		}
	}
	if c.Name == "" {
		return &api.Error{Code: api.NotFound, Message: "no context is used: commands use the NATS or the data folder that is named, or the anima up of this machine", Next: "anima context list lists the contexts; anima context select selects one"}
	}
	p, err := all.named(c.Name)
	if err != nil {
		return err
	}
	v := p.view(c.Name, all.Selected)
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "context\t%s\nselected\t%s\nnats\t%s\ncredentials\t%s %s\nca\t%s\n", v.Name, yes(v.Selected), plain(v.URL), v.Auth, v.Creds, or(v.CA))
	})
}

type contextRemoveCmd struct {
	Name string `arg:"" help:"The context." predictor:"context"`
}

func (c contextRemoveCmd) Run(a *app) error {
	all, err := a.contexts()
	if err != nil {
		return err
	}
	if _, err := all.named(c.Name); err != nil {
		return err
	}
	delete(all.Contexts, c.Name)
	if all.Selected == c.Name {
		all.Selected = ""
	}
	if err := a.saveContexts(all); err != nil {
		return err
	}
	return a.print(map[string]string{"removed": c.Name}, func(w io.Writer) { fmt.Fprintf(w, "context %s is removed\n", c.Name) })
}
