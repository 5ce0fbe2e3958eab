package git

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"syscall"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sanitize"
	"github.com/anima-run/anima/services/loop/internal/tools"
)

// Each call is executed in a process of its own, which is this same binary started again.
// The files of a repository are written by commands of the agent and come from remotes,
// and go-git has no limits: a small object may expand to any size, and deltas that refer
// to each other overflow the stack. In the process of the service this would end the runs
// of all agents.

const (
	hiddenName = "anima-git" // argv[0] of the process

	maxMemory = 1 << 30               // bytes that a call may use, see memoryOf
	maxStack  = 64 << 20              // bytes of one goroutine; the default is 1 GiB
	lookEvery = 10 * time.Millisecond // interval at which the process reads its memory
	linger    = time.Second           // time for the process to end by itself after the call was cancelled

	exitMemory = 3 // exit code of a process that used too much memory
)

// ready reports that Init was called. Otherwise the new process would execute main again.
var ready bool

// order is the request to the process.
type order struct {
	Tool      string          `json:"tool"`
	Agent     string          `json:"agent"`
	Name      string          `json:"name"`
	Workspace string          `json:"workspace"`
	Network   bool            `json:"network"`
	Proxy     string          `json:"proxy"`
	Key       string          `json:"key"`
	Args      json.RawMessage `json:"args"`
	At        int64           `json:"at"`
	Memory    int64           `json:"memory"` // bytes
}

// answer is a message of the process: what a remote reports, or the outcome.
type answer struct {
	Said  []byte     `json:"said,omitempty"`
	Done  bool       `json:"done,omitempty"` // the fields below have the outcome
	Text  string     `json:"text,omitempty"`
	Error *api.Error `json:"error,omitempty"`
	Fault string     `json:"fault,omitempty"` // an error of another type
	Panic string     `json:"panic,omitempty"`
}

// Init must be one of the first calls of main, and of TestMain in packages whose tests
// use the tools. In an ordinary process it returns at once.
func Init() {
	ready = true
	if len(os.Args) == 1 && os.Args[0] == hiddenName {
		syscall.Exit(serve(os.Stdin, os.Stdout)) // os.Exit would wait for the race detector
	}
}

// serve executes one call in the process. The end of asked means that the call is
// cancelled, or that the service has ended.
func serve(asked io.Reader, told io.Writer) int {
	debug.SetMaxStack(maxStack)
	// If the kernel has no memory left, it should end this process and not the service.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0)
	var o order
	orders := json.NewDecoder(asked)
	if err := orders.Decode(&o); err != nil {
		return 1 // the service ended before it sent the order
	}
	go limit(o.Memory) // ends with the process
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, asked)
		cancel()
		<-time.After(linger) // go-git does not look at its context everywhere
		syscall.Exit(1)
	}()
	var mu sync.Mutex
	send := func(a answer) {
		mu.Lock()
		defer mu.Unlock()
		if data, err := api.Encode(a); err == nil {
			_, _ = told.Write(append(data, '\n')) // without a reader the answer has no use
		}
	}
	a := o.run(ctx, func(text []byte) { send(answer{Said: text}) })
	a.Done = true
	send(a)
	return 0
}

// limit ends the process when it uses more than most bytes.
func limit(most int64) {
	debug.SetMemoryLimit(most * 3 / 4) // from there on garbage is collected more often
	used := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	for range time.Tick(lookEvery) {
		metrics.Read(used)
		if int64(used[0].Value.Uint64()-used[1].Value.Uint64()) > most {
			syscall.Exit(exitMemory)
		}
	}
}

// run executes the call.
func (o order) run(ctx context.Context, said progress) (a answer) {
	defer func() {
		if v := recover(); v != nil {
			a = answer{Panic: fmt.Sprintf("%v\n%s", v, debug.Stack())}
		}
	}()
	for _, t := range inProcess(route{proxy: o.Proxy, progress: said}) {
		if t.Name != o.Tool {
			continue
		}
		release, err := lock(ctx, o.Workspace)
		if err != nil {
			return answer{Fault: err.Error()}
		}
		defer release()
		out, err := t.Run(ctx, engine.Call{
			Agent: engine.Agent{ID: o.Agent, Name: o.Name, Workspace: o.Workspace, Network: o.Network}, Key: o.Key, Args: o.Args, At: o.At,
		})
		a.Text = sanitize.Bytes(out.Text, api.MaxOutput+utf8Max) // more than is kept, so that the engine notes the cut
		switch e, typed := errors.AsType[*api.Error](err); {
		case typed:
			a.Error = e
		case err != nil:
			a.Fault = err.Error()
		}
		return a
	}
	return answer{Fault: "there is no tool " + o.Tool}
}

const utf8Max = 4 // bytes of the longest character

// lock waits until no process of another replica uses the workspace, or until ctx ends.
// The end of the process releases the lock, too. Without a file that can be locked, as on
// a full disk, it does not wait: repositories can still be read.
func lock(ctx context.Context, workspace string) (release func(), err error) {
	f, err := lockFile(workspace)
	if err != nil {
		return func() {}, nil
	}
	release = func() { _ = f.Close() } // nothing was written
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return release, nil // locked, or the file system has no locks
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			release()
			return nil, ctx.Err()
		}
	}
}

// lockFile opens the file that is locked.
func lockFile(workspace string) (*os.File, error) {
	root, err := os.OpenRoot(workspace)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }() // nothing is written to it
	if err := root.MkdirAll(filepath.Clean(scratch), 0o700); err != nil {
		return nil, err
	}
	// A command may have created a named pipe in its place.
	return root.OpenFile(scratch+"git.lock", os.O_RDWR|os.O_CREATE|syscall.O_NONBLOCK, 0o600)
}

var errBroke = errors.New("git broke during the call, which may have had an effect; the repository may be damaged")

// memoryOf returns the bytes that a call may use: at most half of the memory limit of the
// service, which its process shares.
func memoryOf(service int64) int64 { return min(maxMemory, service/2) }

// run executes a call in a process of its own, with at most memory bytes. Only one call
// at a time uses a workspace, because go-git does no locking; see lock for other replicas.
func run(ctx context.Context, cfg tools.Config, tool string, c engine.Call, memory int64) (engine.Output, error) {
	free, err := take(ctx, c.Agent.Workspace)
	if err != nil {
		return engine.Output{}, err
	}
	defer free()
	proxy, revoke := cfg.Egress.Grant(c.Agent.ID, c.Agent.Network)
	defer revoke()
	a, err := execute(ctx, order{
		Tool: tool, Agent: c.Agent.ID, Name: c.Agent.Name, Workspace: c.Agent.Workspace, Network: c.Agent.Network,
		Proxy: proxy, Key: c.Key, Args: c.Args, At: c.At, Memory: memory,
	}, tools.Tail(c.Report))
	if err != nil && tool == "git_clone" { // the process was ended before it could remove its files
		err = errors.Join(err, clearHalf(c))
	}
	switch {
	case ctx.Err() != nil:
		return engine.Output{}, context.Cause(ctx)
	case err != nil:
		return engine.Output{}, err
	case a.Panic != "":
		panic(a.Panic) // the engine records it
	case a.Error != nil:
		return engine.Output{Text: a.Text}, a.Error
	case a.Fault != "":
		return engine.Output{Text: a.Text}, errors.New(a.Fault)
	}
	return engine.Output{Text: a.Text}, nil
}

// execute starts the process, passes what it reports to report, which may be nil, and
// returns its last answer after it has ended. The process ends with ctx.
func execute(ctx context.Context, o order, report func([]byte)) (answer, error) {
	cmd, err := command(ctx)
	if err != nil {
		return answer{}, err
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return answer{}, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return answer{}, err
	}
	cmd.Cancel, cmd.WaitDelay = stdin.Close, linger
	if err := cmd.Start(); err != nil {
		return answer{}, fmt.Errorf("start git: %w", err)
	}
	var a answer
	err = json.NewEncoder(stdin).Encode(o)
	for answers := json.NewDecoder(stdout); err == nil && !a.Done; {
		a = answer{}
		if err = answers.Decode(&a); err == nil && report != nil && !a.Done {
			report(a.Said)
		}
	}
	_ = stdin.Close() // closed already if ctx has ended
	ended := cmd.Wait()
	switch exit, exited := errors.AsType[*exec.ExitError](ended); {
	case err == nil:
		return a, nil
	case exited && exit.ExitCode() == exitMemory:
		return answer{}, fmt.Errorf("git was ended, because the repository needs more than %d MiB of memory; the call may have had an effect", o.Memory>>20)
	}
	return answer{}, errBroke
}

// command returns the command of the process.
func command(ctx context.Context) (*exec.Cmd, error) {
	if !ready {
		return nil, errors.New("main must call git.Init first")
	}
	path := "/proc/self/exe" // the file of the binary may have been replaced since
	if runtime.GOOS != "linux" {
		var err error
		if path, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Args = []string{hiddenName}
	cmd.Env = []string{} // empty, because nil would pass the environment of the service with its secrets
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value, set := os.LookupEnv(name); set {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a signal of the terminal is for the service
	return cmd, nil
}
