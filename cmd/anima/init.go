package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
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

// Help returns the text that --help prints below the usage.
func (initCmd) Help() string {
	return `On a terminal the command asks for values that the flags do not give. Otherwise it
lists the missing values and fails. It replaces an existing AGENT.md only with
--force; repeating the command with the same answers changes nothing.

The model service and its key are stored in provider.json in the data folder, which
only its owner can read, and anima up uses them. OPENAI_BASE_URL, OPENAI_API_KEY or
OLLAMA_HOST in the environment of anima up take precedence; then the file is not read.

Examples:
  anima init
  anima init nova.md --name Nova --genesis "You watch the ledger and say so." --yes
  anima init --name Nova --genesis-file prompt.md --creator 0x5aAe… --no-autonomy -o json
  anima init --name Nova --genesis "Be useful." --model-url http://127.0.0.1:11434/v1
  anima init --name Nova --genesis "Be useful." --fund 5`
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
}

// Run collects the answers, validates all of them, and writes the file or nothing.
func (c initCmd) Run(ctx context.Context, a *app) error {
	old, err := c.existing()
	if err != nil {
		return err
	}
	v := initView{File: c.File, Environment: detect(a.Lookup), Providers: providers(a.Lookup)}
	answers, missing, err := c.answers(a)
	if err != nil {
		return err
	}
	for _, w := range c.warnings(a) {
		fmt.Fprintln(a.Err, "anima: warning:", w)
	}
	t := a.terminal()
	_, faults := answers.withPlaceholders(missing).Source()
	if t == nil { // without a terminal, questions are not possible
		faults = append(missing, faults...)
	}
	if len(faults) > 0 {
		return &api.Error{
			Code: api.Invalid, Message: "the flags do not give a valid AGENT.md; nothing was written", Details: faults,
			Next: "correct the flags; on a terminal anima init asks for the other values; anima init --help has examples",
		}
	}
	if c.Fund != "" {
		if _, err := deposit(c.Fund); err != nil {
			return err
		}
	}
	model, models, err := c.flagProvider(ctx, a)
	if err != nil {
		return err
	}
	switch {
	case old != nil && !c.Force && len(missing) > 0:
		return c.existsError()
	case t != nil && (old == nil || c.Force):
		all := &initValues{file: &answers.AgentFile, model: model, models: models, fund: &c.Fund}
		if err := c.ask(ctx, a, t, v, all); err != nil {
			return err
		}
		model, models = all.model, all.models
	}
	src, faults := answers.Source()
	if len(faults) > 0 {
		return &api.Error{Code: api.Invalid, Message: "the answers do not give a valid AGENT.md; nothing was written", Details: faults}
	}
	v.Agent, _ = loop.CheckAgentFile(src)
	v.Autonomy, v.Next = answers.Autonomy, c.next(a, v)
	switch {
	case bytes.Equal(old, src):
	case old != nil && !c.Force:
		return c.existsError()
	default:
		if err := c.write(src); err != nil {
			return err
		}
		v.Written = true
	}
	if err := c.storeModel(a, &v, model, models); err != nil {
		return err
	}
	if err := c.createAgent(ctx, a, &v, src); err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) { v.text(a, w) })
}

// warnings returns the faults of the settings that would prevent the next step.
func (initCmd) warnings(a *app) []string {
	all := config.Unknown(known(), a.Environ)
	_, _, err := settings(upLookup(a.Lookup, nil, lookupIn(nil)))
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
	if err != nil {
		return nil, &api.Error{Code: api.Invalid, Message: err.Error(), Next: "name another file"}
	}
	defer func() { _ = f.Close() }() // read only: a Close error loses no data
	src, err := io.ReadAll(io.LimitReader(f, maxSource+1))
	if err != nil {
		return nil, &api.Error{Code: api.Invalid, Message: err.Error(), Next: "name another file"}
	}
	if _, faults := loop.CheckAgentFile(src); len(faults) > 0 && !c.Force {
		return nil, &api.Error{
			Code: api.Invalid, Message: c.File + " exists and has faults; it was not changed", Details: faults,
			Next: "correct it, name another file, or replace it with --force",
		}
	}
	return src, nil
}

func (c initCmd) existsError() error {
	return &api.Error{
		Code: api.Conflict, Message: c.File + " already exists; it was not changed",
		Next: "use it (anima agent apply " + shellQuote(c.File) + "), name another file, or replace it with --force",
	}
}

// answers holds the values of the flags.
type answers struct{ loop.AgentFile }

// noName and noGenesis are the errors for required values that are missing.
const (
	noName    = "name is missing: give it with --name"
	noGenesis = "the genesis prompt is missing: give it with --genesis or --genesis-file"
)

// answers returns the values of the flags and the errors for required values that are
// missing.
func (c initCmd) answers(a *app) (f answers, missing []string, err error) {
	f = answers{loop.AgentFile{
		Name: valueOf(c.Name), Genesis: valueOf(c.Genesis), Creator: valueOf(c.Creator), Message: valueOf(c.Message),
		Description: c.Description, Model: c.Model, Tools: c.Tools, Autonomy: c.Autonomy == nil || *c.Autonomy,
	}}
	if c.GenesisFile != "" {
		data, err := (agentApplyCmd{File: c.GenesisFile}).read(a.In)
		if err != nil {
			return f, nil, &api.Error{Code: api.Invalid, Message: err.Error(), Next: "name a file that holds the genesis prompt, or - for standard input"}
		}
		f.Genesis = string(data)
	}
	if c.Name == nil {
		missing = append(missing, noName)
	}
	if c.Genesis == nil && c.GenesisFile == "" {
		missing = append(missing, noGenesis)
	}
	return f, missing, nil
}

func valueOf(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// withPlaceholders returns the answers with placeholders for missing values, so that the
// other values can be validated.
func (f answers) withPlaceholders(missing []string) answers {
	for _, m := range missing {
		if m == noName {
			f.Name = "x"
		} else {
			f.Genesis = "x"
		}
	}
	return f
}

// write writes the file atomically. Without --force it fails if the file exists, also if
// it was created since the check.
func (c initCmd) write(src []byte) error {
	create := createFile
	if c.Force {
		create = writeFile
	}
	err := create(c.File, src)
	switch {
	case errors.Is(err, fs.ErrExist):
		return c.existsError()
	case err != nil:
		return &api.Error{Code: api.Invalid, Message: err.Error(), Next: "name a file that you may write"}
	}
	return nil
}

// next returns the commands for the next step. If an anima is running, they apply the
// file to it.
func (c initCmd) next(a *app, v initView) []string {
	file := shellQuote(c.File)
	commands := []string{"anima agent apply " + file, "anima agent fund " + v.Agent + " 5", "anima session send " + v.Agent + ` "who are you?"`}
	if _, _, err := a.dialing(); err == nil || v.Environment.Kind == inKubernetes {
		return commands
	}
	return []string{"anima up --agent " + file, commands[2]}
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
	if m := v.Model; m != nil && m.File != "" {
		key := "without a key"
		if m.Key {
			key = "with its key"
		}
		fmt.Fprintf(w, "model service: %s, stored %s in %s\n", plain(m.URL), key, m.File)
	}
	if len(v.Providers) == 0 {
		if v.Model == nil || v.Model.File == "" {
			fmt.Fprintln(w, "model providers: none is configured, the simulated model is used (set OPENAI_API_KEY, OPENAI_BASE_URL or OLLAMA_HOST for a real one)")
		}
		return
	}
	fmt.Fprintf(w, "model providers: %s is set\n", strings.Join(v.Providers, ", "))
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
func detect(lookup func(string) (string, bool)) environment {
	for _, at := range []struct{ variable, kind string }{
		{"CONWAY_SANDBOX_ID", inSandbox}, {"KUBERNETES_SERVICE_HOST", inKubernetes},
	} {
		if v, ok := lookup(at.variable); ok && v != "" {
			return environment{at.kind, at.variable + " is set"}
		}
	}
	return environment{inLocal, "neither CONWAY_SANDBOX_ID nor KUBERNETES_SERVICE_HOST is set"}
}

// providers returns the names of the variables of model providers that are set, without
// their values.
func providers(lookup func(string) (string, bool)) []string {
	set := []string{}
	for _, f := range router.Service.Fields() {
		if strings.HasPrefix(f.Env, "ANIMA_") {
			continue // a setting of anima, not a variable of a provider
		}
		names := []string{f.Env}
		if f.Secret {
			names = append(names, f.Env+"_FILE")
		}
		for _, name := range names {
			if v, ok := lookup(name); ok && v != "" {
				set = append(set, name)
			}
		}
	}
	return set
}

// shellQuote returns the text quoted as one word of a shell command.
func shellQuote(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-@:,%") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
