package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
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

// contextsPath returns the path of the file of contexts.
func (a *app) contextsPath() (string, error) {
	dir := a.userDir("XDG_CONFIG_HOME", ".config")
	if dir == "" {
		return "", failure(api.Invalid, "HOME is not set: contexts cannot be stored", "set HOME or XDG_CONFIG_HOME")
	}
	return filepath.Join(dir, contextsFile), nil
}

// contexts reads the file of contexts. A missing file is an empty list. A file that other
// users may read is refused, because it holds credentials.
func (a *app) contexts() (contextList, error) {
	var all contextList
	file, err := a.contextsPath()
	if err != nil {
		return all, err
	}
	data, exposed, err := readPrivate(file)
	switch {
	case exposed:
		return all, failure(api.Denied, "other users can read "+file+", which holds credentials", "chmod 600 "+file)
	case err != nil:
		return all, fmt.Errorf("contexts: %w", err)
	case data != nil && json.Unmarshal(data, &all) != nil:
		return all, failure(api.Invalid, file+" is not in the format of anima context", "correct it, or remove it and add the contexts again with anima context add")
	}
	if all.Contexts == nil {
		all.Contexts = map[string]savedContext{}
	}
	return all, nil
}

// changeContexts changes the file of contexts atomically: a reader finds the old or the
// new content, and commands that change it at the same time do so one after the other.
// change must not wait for input.
func (a *app) changeContexts(change func(*contextList) error) error {
	file, err := a.contextsPath()
	if err != nil {
		return err
	}
	unlock, err := lockFile(file + ".lock")
	if err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	defer unlock()
	all, err := a.contexts()
	if err != nil {
		return err
	}
	if err := change(&all); err != nil {
		return err
	}
	if err := writePrivate(file, all); err != nil {
		return fmt.Errorf("contexts: %w", err)
	}
	return nil
}

// selectedContext returns the context that a command uses and its name; an empty name
// means none. The order of precedence is a URL, a named context, a named data folder, and
// the selected context.
func (a *app) selectedContext() (string, savedContext, error) {
	name := cmp.Or(a.cli.Context, a.env("ANIMA_CONTEXT"))
	switch _, err := a.contextsPath(); {
	case a.urlNamed():
		return "", savedContext{}, nil
	case name == "" && (err != nil || a.cli.Data != "" || a.env("ANIMA_DATA") != ""): // without a folder for settings there are no contexts
		return "", savedContext{}, nil
	}
	all, err := a.contexts()
	if err != nil {
		return "", savedContext{}, err
	}
	if name = cmp.Or(name, all.Selected); name == "" {
		return "", savedContext{}, nil
	}
	p, err := all.named(name)
	return name, p, err
}

func (p contextList) named(name string) (savedContext, error) {
	v, ok := p.Contexts[name]
	if !ok {
		return v, failure(api.NotFound, "there is no context "+name, "anima context list lists the contexts; anima context add creates one")
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

// maxSecret is the maximum number of bytes that is read of a file with a secret.
const maxSecret = 16 << 10

func (c contextAddCmd) Run(a *app) (err error) {
	if !api.ValidKey(c.Name) {
		return failure(api.Invalid, fmt.Sprintf("%q cannot be the name of a context", plain(c.Name)), "use letters, digits, - and _")
	}
	url := bus.RedactURL(c.URL)
	if !strings.Contains(c.URL, "://") {
		return failure(api.Invalid, fmt.Sprintf("%q is not the URL of a NATS server", plain(url)), "write nats://host:4222 or tls://host:4222")
	}
	p := savedContext{URL: c.URL, Creds: c.Creds, CA: c.CA}
	if p.Token, err = a.secret(c.TokenFile); err != nil {
		return err
	}
	if p.NKey, err = a.secret(c.NKeyFile); err != nil {
		return err
	}
	var v contextView
	err = a.changeContexts(func(all *contextList) error {
		all.Contexts[c.Name] = p
		if c.Select {
			all.Selected = c.Name
		}
		v = all.view(c.Name)
		return nil
	})
	if err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) { fmt.Fprintf(w, "context %s is %s\n", c.Name, url) })
}

// secret reads a secret from a file; it returns "" if no file is named. A file without a
// secret and a file of more than maxSecret bytes are errors.
func (a *app) secret(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	data, err := a.read(file, maxSecret)
	if errors.Is(err, context.Canceled) {
		return "", err
	}
	if err != nil {
		return "", failure(api.Invalid, err.Error(), "name a file that holds the secret, or - for standard input")
	}
	text := strings.TrimSpace(string(data))
	if text == "" || len(data) > maxSecret {
		return "", failure(api.Invalid, fmt.Sprintf("%s holds no secret: it is empty or larger than %d bytes", file, maxSecret),
			"name the file with the token or the seed; only one of --token-file and --nkey-file can be standard input")
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

func (p contextList) view(name string) contextView {
	c := p.Contexts[name]
	v := contextView{Name: name, Selected: name == p.Selected, URL: bus.RedactURL(c.URL), Auth: "none", Creds: c.Creds, CA: c.CA}
	switch {
	case c.NKey != "":
		v.Auth = "nkey"
	case c.Creds != "":
		v.Auth = "creds"
	case c.Token != "":
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
		v.Contexts = append(v.Contexts, all.view(name))
	}
	return a.print(v, func(w io.Writer) {
		table(w, "CONTEXT\tSELECTED\tNATS\tCREDENTIALS", v.Contexts, api.Page{}, func(c contextView) []any {
			return []any{c.Name, yes(c.Selected), plain(c.URL), c.Auth}
		})
	})
}

type contextSelectCmd struct {
	Name string `arg:"" optional:"" help:"The context; none: use the anima up of this machine." predictor:"context"`
}

func (c contextSelectCmd) Run(a *app) error {
	err := a.changeContexts(func(all *contextList) error {
		all.Selected = c.Name
		if c.Name == "" {
			return nil
		}
		_, err := all.named(c.Name)
		return err
	})
	if err != nil {
		return err
	}
	return a.print(map[string]string{"selected": c.Name}, func(w io.Writer) { fmt.Fprintf(w, "selected: %s\n", cmp.Or(c.Name, "-")) })
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
		return failure(api.NotFound, "no context is used: commands use the NATS or the data folder that is named, or the anima up of this machine",
			"anima context list lists the contexts; anima context select selects one")
	}
	if _, err := all.named(c.Name); err != nil {
		return err
	}
	v := all.view(c.Name)
	return a.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "context\t%s\nselected\t%s\nnats\t%s\ncredentials\t%s %s\nca\t%s\n",
			v.Name, yes(v.Selected), plain(v.URL), v.Auth, v.Creds, cmp.Or(v.CA, "-"))
	})
}

type contextRemoveCmd struct {
	Name string `arg:"" help:"The context." predictor:"context"`
}

func (c contextRemoveCmd) Run(a *app) error {
	err := a.changeContexts(func(all *contextList) error {
		_, err := all.named(c.Name)
		delete(all.Contexts, c.Name)
		if all.Selected == c.Name {
			all.Selected = ""
		}
		return err
	})
	if err != nil {
		return err
	}
	return a.print(map[string]string{"removed": c.Name}, func(w io.Writer) { fmt.Fprintf(w, "context %s is removed\n", c.Name) })
}
