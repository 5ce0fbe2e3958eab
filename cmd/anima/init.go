package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
	router "github.com/anima-run/anima/services/inference-router"
	"github.com/anima-run/anima/services/loop"
)

// initCmd is the first run (docs/reference/platform.md, First run): it writes the AGENT.md
// of a new agent. All other configuration is in settings, which have defaults.
type initCmd struct {
	File         string   `arg:"" optional:"" default:"AGENT.md" help:"The AGENT.md to write."`
	Name         *string  `help:"Its name: letters, digits and -." placeholder:"TEXT"`
	Genesis      *string  `help:"The genesis prompt: the identity and the purpose of the agent." placeholder:"TEXT" xor:"genesis"`
	GenesisFile  string   `help:"A file that holds the genesis prompt; - reads standard input." placeholder:"FILE" xor:"genesis"`
	Creator      *string  `help:"Address of the creator, shown to the agent." placeholder:"0x…"`
	Message      *string  `help:"Message of the creator, shown in the first turn of the agent." placeholder:"TEXT"`
	Description  string   `help:"Description that other agents read." placeholder:"TEXT"`
	Model        string   `help:"The preferred model; default is the choice of the router." placeholder:"MODEL"`
	Tools        []string `help:"The tools that the agent may use; default is a basic set, which anima agent get shows." placeholder:"TOOL"`
	Autonomy     *bool    `help:"Wake the agent a minute after it had no more work; default is yes." negatable:""`
	ModelURL     *string  `name:"model-url" help:"Model service to use: an OpenAI-compatible address with its version, openai, or simulated. It is tested, and stored in the data folder for anima up." placeholder:"URL"`
	ModelKeyFile string   `name:"model-key-file" help:"A file that holds the service's key; - reads standard input. The key is stored with the address." placeholder:"FILE"`
	ModelCheck   bool     `name:"model-check" help:"Ask the model service for its models before it is stored." default:"true" negatable:""`
	Fund         string   `help:"Create the agent in the running anima, and deposit this amount of dollars." placeholder:"AMOUNT"`
	Yes          bool     `short:"y" help:"Do not ask before writing."`
	Force        bool     `help:"Replace an existing AGENT.md."`
}

// initView is the output of init.
type initView struct {
	File        string       `json:"file"`
	Agent       string       `json:"agent"`
	Written     bool         `json:"written"` // false: the file existed with the same text
	Autonomy    bool         `json:"autonomy"`
	Environment environment  `json:"environment"`
	Providers   []string     `json:"providers"`         // names of the environment variables that are set, without their values
	Model       *modelView   `json:"model,omitempty"`   // the provider that was stored; nil: none was requested
	Balance     *api.Balance `json:"balance,omitempty"` // of the agent, if init created and funded it
	Next        []string     `json:"next"`              // commands

	Stored string `json:"-"` // URL of the provider that the data folder has at the start; "": none
}

// setup is one execution of init.
type setup struct {
	initCmd
	app   *app
	old   []byte // the existing AGENT.md; nil: none
	file  loop.AgentFile
	model *provider // provider to store; nil: none was named
	view  initView
}

// Run collects the answers, validates all of them, and writes the file or nothing.
func (c initCmd) Run(ctx context.Context, a *app) (err error) {
	s := &setup{initCmd: c, app: a, view: initView{File: c.File, Environment: detect(a.Lookup), Providers: providers(a.Lookup)}}
	if s.old, err = c.existing(); err != nil {
		return err
	}
	if p, err := a.storedHere(); err == nil { // an error is that of the step that uses the file
		s.view.Stored = p.URL
	}
	missing, faults, err := s.flags()
	if err != nil {
		return err
	}
	a.warn(s.warnings())
	t := terminalOf(a.In, a.Err) // standard output may be a pipe to a program
	if t == nil {                // without a terminal, questions are not possible
		faults = append(missing, faults...)
	}
	if len(faults) > 0 {
		return failure(api.Invalid, "the flags do not give a valid AGENT.md; nothing was written",
			"correct the flags; on a terminal anima init asks for the other values; anima init --help has examples", faults...)
	}
	if c.Fund != "" {
		if _, err := positive(c.Fund); err != nil {
			return err
		}
	}
	if s.model, err = c.flagProvider(ctx, a); err != nil {
		return err
	}
	keep := s.old != nil && !c.Force
	if keep && len(missing) > 0 {
		return c.existsError()
	}
	if t != nil && !keep {
		if err := s.ask(ctx, t); err != nil {
			return err
		}
	}
	src, err := s.write()
	if err != nil {
		return err
	}
	if err := s.storeModel(); err != nil {
		return err
	}
	if err := s.createAgent(ctx, src); err != nil {
		return err
	}
	return a.print(s.view, func(w io.Writer) { s.view.text(a, w) })
}

// warnings returns the faults of the settings that would prevent the next step.
func (s *setup) warnings() []string {
	all := config.Unknown(known(), s.app.Environ)
	_, _, err := settings(upLookup(s.app.Lookup, nil, lookupIn(nil)))
	if e, ok := errors.AsType[*api.Error](err); ok {
		for _, d := range e.Details {
			all = append(all, "anima up would not start: "+d)
		}
	}
	return all
}

// existing reads the existing AGENT.md; it returns nil if there is none. A file with
// faults is an error and not replaced (docs/reference/platform.md, overwritten
// definition): the user has to correct or remove it.
func (c initCmd) existing() ([]byte, error) {
	f, err := os.Open(c.File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var src []byte
	if err == nil {
		src, err = io.ReadAll(io.LimitReader(f, maxSource+1))
		_ = f.Close() // read only: a Close error loses no data
	}
	if err != nil {
		return nil, failure(api.Invalid, err.Error(), "name another file")
	}
	if _, faults := loop.CheckAgentFile(src); len(faults) > 0 && !c.Force {
		return nil, failure(api.Invalid, c.File+" exists and has faults; it was not changed", "correct it, name another file, or replace it with --force", faults...)
	}
	return src, nil
}

func (c initCmd) existsError() error {
	return failure(api.Conflict, c.File+" already exists; it was not changed",
		"use it (anima agent apply "+shellQuote(c.File)+"), name another file, or replace it with --force")
}

// flags reads the values of the flags. It returns the required values that are missing,
// and the faults of the others.
func (s *setup) flags() (missing, faults []string, err error) {
	text := func(flag *string) string {
		if flag == nil {
			return ""
		}
		return *flag
	}
	s.file = loop.AgentFile{
		Name: text(s.Name), Genesis: text(s.Genesis), Creator: text(s.Creator), Message: text(s.Message),
		Description: s.Description, Model: s.Model, Tools: s.Tools, Autonomy: s.Autonomy == nil || *s.Autonomy,
	}
	if s.GenesisFile != "" {
		if s.file.Genesis, err = s.app.readText(s.GenesisFile, "name a file that holds the genesis prompt, or - for standard input"); err != nil {
			return nil, nil, err
		}
	}
	whole := s.file // with placeholders for missing values
	if s.Name == nil {
		missing, whole.Name = append(missing, "name is missing: give it with --name"), "x"
	}
	if s.Genesis == nil && s.GenesisFile == "" {
		missing, whole.Genesis = append(missing, "the genesis prompt is missing: give it with --genesis or --genesis-file"), "x"
	}
	_, faults = whole.Source()
	return missing, faults, nil
}

// write writes the AGENT.md and returns it. Without --force it fails if another file
// exists, also if that was created since the check.
func (s *setup) write() ([]byte, error) {
	src, faults := s.file.Source()
	if len(faults) > 0 {
		return nil, failure(api.Invalid, "the answers do not give a valid AGENT.md; nothing was written", "", faults...)
	}
	v := &s.view
	v.Agent, _ = loop.CheckAgentFile(src)
	v.Autonomy, v.Next = s.file.Autonomy, s.next()
	if bytes.Equal(s.old, src) {
		return src, nil
	}
	if s.old != nil && !s.Force {
		return nil, s.existsError()
	}
	err := putNew(s.File, src, s.Force)
	if errors.Is(err, fs.ErrExist) {
		return nil, s.existsError()
	}
	v.Written = err == nil
	return src, err
}

// next returns the commands for the next step. If an anima is running, they apply the
// file to it.
func (s *setup) next() []string {
	file, agent := shellQuote(s.File), s.view.Agent
	send := "anima session send " + agent + ` "who are you?"`
	if _, _, err := s.app.dialing(); err == nil || s.view.Environment.Kind == inKubernetes {
		return []string{"anima agent apply " + file, "anima agent fund " + agent + " 5", send}
	}
	return []string{"anima up --agent " + file, send}
}

func (v initView) text(a *app, w io.Writer) {
	if v.Written {
		fmt.Fprintf(w, "%s is written: agent %s\n", v.File, v.Agent)
	} else {
		fmt.Fprintf(w, "%s already exists with the same content: agent %s\n", v.File, v.Agent)
	}
	v.printEnvironment(w)
	if v.Balance != nil {
		fmt.Fprintf(w, "%s is created and has %s\n", v.Agent, v.Balance.Available+v.Balance.Held)
	}
	fmt.Fprintln(w, "\nNext:")
	for _, n := range v.Next {
		fmt.Fprintln(w, "  "+a.named(n))
	}
	if v.Balance == nil {
		fmt.Fprintln(w, a.named("anima up --agent deposits five dollars of test credits when it creates the agent."))
	}
}

// printEnvironment prints the detected environment and providers.
func (v initView) printEnvironment(w io.Writer) {
	fmt.Fprintf(w, "environment: %s, because %s\n", v.Environment.Kind, v.Environment.Because)
	stored := v.Stored != ""
	switch {
	case v.Model != nil && v.Model.File != "":
		key := "without a key"
		if v.Model.Key {
			key = "with its key"
		}
		fmt.Fprintf(w, "model service: %s, stored %s in %s\n", plain(v.Model.URL), key, v.Model.File)
		stored = true
	case v.Model != nil:
		stored = false
	case stored:
		fmt.Fprintf(w, "model service: %s, stored before\n", plain(v.Stored))
	}
	switch {
	case len(v.Providers) > 0:
		fmt.Fprintf(w, "model providers: %s is set\n", strings.Join(v.Providers, ", "))
	case !stored:
		fmt.Fprintln(w, "model providers: none is configured, the simulated model is used (set OPENAI_API_KEY, OPENAI_BASE_URL or OLLAMA_HOST for a real one)")
	}
}

// environment describes where the program runs, and the reason for that conclusion.
type environment struct {
	Kind    string `json:"kind"`
	Because string `json:"because"`
}

const (
	inSandbox    = "sandbox"
	inKubernetes = "kubernetes"
	inLocal      = "local"
)

// detect determines the environment by variables that the sandboxes of Conway and
// Kubernetes set for every program.
func detect(lookup config.Lookup) environment {
	for _, at := range []struct{ variable, kind string }{
		{"CONWAY_SANDBOX_ID", inSandbox}, {"KUBERNETES_SERVICE_HOST", inKubernetes},
	} {
		if v, _ := lookup(at.variable); v != "" {
			return environment{at.kind, at.variable + " is set"}
		}
	}
	return environment{inLocal, "neither CONWAY_SANDBOX_ID nor KUBERNETES_SERVICE_HOST is set"}
}

// providers returns the names of the variables of model providers that are set, without
// their values.
func providers(lookup config.Lookup) []string {
	names := []string{}
	for _, f := range router.Service.Fields() {
		if strings.HasPrefix(f.Env, "ANIMA_") {
			continue // a setting of anima, not a variable of a provider
		}
		names = append(names, f.Env)
		if f.Secret {
			names = append(names, f.Env+"_FILE")
		}
	}
	return slices.DeleteFunc(names, func(name string) bool {
		v, _ := lookup(name)
		return v == ""
	})
}

// shellQuote returns the text quoted as one word of a shell command.
func shellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-@:,%") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
