// Command anima runs every service in one process and is the command line of the
// operator. It connects components, sends requests and prints answers; it must not
// contain logic of a service.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	kongcompletion "github.com/jotaen/kong-completion"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/loop"
)

func main() {
	loop.Init()
	host.TuneGC(os.LookupEnv)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], &app{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Lookup: os.LookupEnv, Environ: os.Environ(), Name: os.Args[0],
	}))
}

// Exit codes of the program. Scripts may rely on them, and the help text lists them.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2 // also for invalid input
	exitNotFound    = 3
	exitDenied      = 4
	exitConflict    = 5
	exitUnavailable = 6

	// The completion ended in a way other than a complete answer.
	exitLength     = 10
	exitFilter     = 11
	exitRefusal    = 12
	exitEmpty      = 13
	exitRepetition = 14
	exitTimeout    = 15
)

// app is the program with its inputs and outputs, apart from the process, so that tests
// can run it.
type app struct {
	In       io.Reader
	Out, Err io.Writer
	Lookup   config.Lookup
	Environ  []string // the same environment as Lookup, for the search for misspelt settings
	Name     string   // name that the program was started with: anima, .bin/anima; "" means anima
	cli      cli
	words    []string // first words of all commands; set by [app.commands]
	conn     *bus.Bus // connection of [app.connect], or nil
	hangUp   func()   // closes conn

	signal <-chan struct{} // closed by a signal to stop; set by [run]
}

type cli struct {
	Output string `short:"o" enum:"text,json" default:"text" help:"Output: text or json; event streams are one JSON value per line."`
	Data   string `help:"Data folder (ANIMA_DATA); default is anima in the user's data folder." placeholder:"DIR"`
	NATS   string `name:"nats" help:"URL of NATS (ANIMA_NATS_URL); default is the NATS of anima up." placeholder:"URL"`

	Context string `help:"Context to use (ANIMA_CONTEXT); see anima context." placeholder:"NAME" predictor:"context"`

	Init    initCmd    `cmd:"" help:"Write the AGENT.md that an agent is created from."`
	Up      upCmd      `cmd:"" help:"Run every service in this process."`
	Demo    demoCmd    `cmd:"" help:"Run one complete example in a new folder and check the result."`
	Agent   agentCmd   `cmd:"" help:"Agents."`
	Chat    chatCmd    `cmd:"" help:"Talk with an agent."`
	Session sessionCmd `cmd:"" help:"Sessions: conversations with an agent."`
	Run     runCmd     `cmd:"" help:"Runs: executions on a session, each for a message or a wake."`
	Turn    turnCmd    `cmd:"" help:"Turns: one model call and the tool calls it asked for."`
	Goal    goalCmd    `cmd:"" help:"Goals: work that an agent plans as a graph of tasks."`
	Memory  memoryCmd  `cmd:"" help:"What agents remember."`
	Soul    soulCmd    `cmd:"" help:"Souls: the agents' descriptions of themselves."`
	Tool    toolCmd    `cmd:"" help:"Tools: what agents can do."`
	Skill   skillCmd   `cmd:"" help:"Skills: instructions in agents' folders."`
	Server  serverCmd  `cmd:"" help:"MCP servers of agents."`

	Heartbeat heartbeatCmd `cmd:"" help:"Schedules: the recurring wakes of agents."`
	Social    socialCmd    `cmd:"" help:"Messages between agents."`

	Key keyCmd `cmd:"" help:"API keys: access of programs to the HTTP API as one agent."`

	Ledger  ledgerCmd  `cmd:"" help:"The ledger: balances and transactions."`
	Payment paymentCmd `cmd:"" help:"What agents pay over HTTP, by x402."`
	Wallet  walletCmd  `cmd:"" help:"Wallets of agents: their USDC on the chain."`
	Chain   chainCmd   `cmd:"" help:"Show the state of the chain that treasury reads."`
	Budget  budgetCmd  `cmd:"" help:"Limits of what agents may spend."`
	Policy  policyCmd  `cmd:"" help:"Policy: what agents may do."`
	Model   modelCmd   `cmd:"" help:"Models."`
	Status  statusCmd  `cmd:"" help:"Show services, agents, queues, money and models."`
	Help    helpCmd    `cmd:"" help:"Show the help of a command."`
	Doctor  doctorCmd  `cmd:"" help:"Check the disk, the stores, the streams, the ledger and the models."`
	Version versionCmd `cmd:"" help:"Print the version."`

	Contexts contextCmd `cmd:"" name:"context" help:"Contexts: named addresses and credentials of other installations."`

	Completion kongcompletion.Completion `cmd:"" help:"Print the shell's completion script: eval \"$(anima completion -c bash)\"."`
}

// parser returns a parser that stores the parsed command line in a.cli. It calls exit
// instead of ending the process.
func (a *app) parser(ctx context.Context, exit func(int)) *kong.Kong {
	parser := kong.Must(
		&a.cli, kong.Name(programName), kong.Description("Self-funding AI agents on NATS JetStream.\n\n"+examples),
		kong.Writers(renamed{a.Out, a}, renamed{a.Err, a}), kong.Exit(exit),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(a),
	)
	texts := details()
	for _, leaf := range parser.Model.Leaves(false) {
		leaf.Detail = cmp.Or(texts[leaf.Path()], leaf.Detail)
	}
	return parser
}

// run parses and runs one command, and returns the exit code.
func run(ctx context.Context, args []string, a *app) int {
	a.signal = ctx.Done()
	if len(args) == 0 && a.env("COMP_LINE") == "" { // for a completion, fish gives no arguments
		fmt.Fprintln(a.Out, a.named(shortHelp))
		return exitOK
	}
	if len(args) > 0 && args[0] == "--version" { // commands may have a flag of that name
		args = append([]string{"version"}, args[1:]...)
	}
	exited := -1
	parser := a.parser(ctx, func(code int) { exited = code })
	if completed(parser, a.predictors(ctx)) {
		return exitOK
	}
	k, err := parser.Parse(args)
	if exited >= 0 {
		return exited
	}
	if err != nil {
		if asksForJSON(args) {
			a.cli.Output = outputJSON
		}
		a.printError(failure(api.Invalid, err.Error(), helpAfter(err)))
		return exitUsage
	}
	defer a.disconnect()
	if w, ok := k.Selected().Target.Interface().(interface{ watched() bool }); ok && w.watched() {
		err = a.repeat(ctx, func() error { return k.Run() })
	} else {
		err = k.Run()
	}
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil {
		err = interrupted(err)
	}
	if _, shown := errors.AsType[*shownError](err); !shown {
		a.printError(err)
	}
	return exitCode(err)
}

// asksForJSON reports whether a command line that cannot be parsed has -o json.
func asksForJSON(args []string) bool {
	for i, arg := range args {
		switch arg {
		case "-ojson", "-o=json", "--output=json":
			return true
		case "-o", "--output":
			if i+1 < len(args) && args[i+1] == outputJSON {
				return true
			}
		}
	}
	return false
}

// helpAfter returns where the help for a command line that cannot be parsed is: that of the
// command, or of the group of commands, that it names.
func helpAfter(err error) string {
	fault, ok := errors.AsType[*kong.ParseError](err)
	if !ok || fault.Context == nil {
		return "anima --help lists the commands"
	}
	command, group := "anima", true
	for _, p := range fault.Context.Path {
		if p.Command != nil {
			command, group = command+" "+p.Command.Name, !p.Command.Leaf()
		}
	}
	if group {
		return command + " --help lists the commands"
	}
	return command + " --help has the arguments, the flags and examples"
}

func exitCode(err error) int {
	reasons := map[string]int{
		api.FinishLength: exitLength, api.FinishFilter: exitFilter, api.FinishRefusal: exitRefusal, api.FinishEmpty: exitEmpty,
		api.FinishRepetition: exitRepetition, api.ReasonTimeout: exitTimeout,
	}
	codes := map[api.Code]int{
		api.Invalid: exitUsage, api.NotFound: exitNotFound, api.Denied: exitDenied, api.Conflict: exitConflict, api.Unavailable: exitUnavailable,
	}
	if api.CodeOf(err) == api.Internal { // as runError returns it: a service may refuse another request for one of these reasons
		return cmp.Or(reasons[api.ReasonOf(err)], exitFailed)
	}
	return cmp.Or(codes[api.CodeOf(err)], exitFailed)
}

// printError prints the message, the details and the next step of an error; with -o json
// in the form of the HTTP API.
func (a *app) printError(err error) {
	// An error without a code is one of this process: no service answered with it.
	e := api.Error{Code: api.Internal, Message: err.Error(), Next: "correct what the message names, then try again; docs/config.md lists all settings"}
	if inner, ok := errors.AsType[*api.Error](err); ok {
		e = *inner
		e.Message = strings.Replace(err.Error(), inner.Error(), e.Message, 1) // with the text of the errors around it
	}
	e.Next = api.Advice(&e)
	if a.json() && writeLine(a.Err, map[string]api.Error{"error": e}) == nil {
		return
	}
	fmt.Fprintf(a.Err, "anima: %s\n", plain(e.Message))
	for _, d := range e.Details {
		fmt.Fprintf(a.Err, "  %s\n", plain(d))
	}
	fmt.Fprintln(a.Err, a.named(plain(e.Next)))
}

type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command: session send."`
}

// Run prints the output of COMMAND --help.
func (c helpCmd) Run(ctx context.Context, a *app) error {
	shown := false
	parser := a.parser(ctx, func(int) { shown = true })
	_, err := parser.Parse(append(slices.Clone(c.Command), "--help"))
	if err != nil && !shown {
		return failure(api.Invalid, err.Error(), "anima --help lists the commands")
	}
	return nil
}

type versionCmd struct{}

func (versionCmd) Run(a *app) error {
	v := map[string]string{"version": host.Version()}
	return a.print(v, func(w io.Writer) { fmt.Fprintln(w, "anima", v["version"]) })
}
