package runbook

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// page is a runbook that is being run, with its shell and its terminals.
type page struct {
	opts   Options
	env    []string
	work   string
	shell  *shell
	beside []*exec.Cmd
	count  int
}

// shell is a bash that runs one file after the other. It reports the end of each over a
// separate pipe, so that the output of a block contains nothing else.
type shell struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	done chan string   // a line for each file that completed
	gone chan struct{} // closed when the shell has ended, with err
	err  error
}

// command returns a bash in the lab's network that is the leader of its process group.
func (p *page) command(args ...string) *exec.Cmd {
	argv := append([]string{"bash", "--noprofile", "--norc", "-euo", "pipefail"}, args...)
	if p.opts.Lab != "" {
		argv = append([]string{p.opts.Lab, "exec", "--"}, argv...)
	}
	// The process is not bound to a context: end kills the whole group.
	c := exec.Command(argv[0], argv[1:]...) //nolint:noctx // see above
	c.Dir, c.Env = p.opts.Root, p.env
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return c
}

// end kills the process group of a command.
func end(c *exec.Cmd) {
	_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) // it may have ended
}

func (p *page) start() (*shell, error) {
	in, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the shell has its own descriptor
	log, err := os.Create(filepath.Join(p.work, ".shell"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the shell has its own descriptor
	s := &shell{cmd: p.command(), done: make(chan string, 1), gone: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.ExtraFiles = log, log, []*os.File{out}
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a shell: %w", err)
	}
	go func() {
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			s.done <- lines.Text()
		}
		_ = in.Close() // read only
	}()
	go func() {
		s.err = s.cmd.Wait()
		close(s.gone)
	}()
	return s, nil
}

// leave ends the page's shell; the next block gets a new one.
func (p *page) leave() {
	if p.shell == nil {
		return
	}
	end(p.shell.cmd)
	<-p.shell.gone
	p.shell = nil
}

// close ends every process that the page has started.
func (p *page) close() {
	p.leave()
	for _, c := range p.beside {
		end(c)
		_ = c.Wait() // killed above
	}
}

// run runs one block. Its error contains the block and its output.
func (p *page) run(ctx context.Context, b Block) error {
	p.count++
	file := filepath.Join(p.work, fmt.Sprintf(".block-%d", p.count))
	if err := os.WriteFile(file, []byte(b.Script), 0o600); err != nil {
		return err
	}
	if b.Terminal {
		return p.terminal(ctx, b, file)
	}
	if p.shell == nil {
		s, err := p.start()
		if err != nil {
			return err
		}
		p.shell = s
	}
	limit := b.Timeout
	if limit == 0 {
		limit = p.opts.Timeout
	}
	why := p.wait(ctx, file, limit)
	got, err := os.ReadFile(file + ".out")
	if err != nil && why == nil {
		why = err
	}
	if why == nil && (b.Want == "" || matches(b.Want, string(got))) {
		return nil
	}
	var text strings.Builder
	if why == nil {
		why = errors.New("it printed something else")
	}
	fmt.Fprintf(&text, "%s:%d: %v\n%s", b.File, b.Line, why, indent("  $ ", b.Script))
	fmt.Fprintf(&text, "  it printed:\n%s", indent("  | ", tail(string(got))))
	if b.Want != "" {
		fmt.Fprintf(&text, "  the page says:\n%s", indent("  | ", b.Want))
	}
	return errors.New(strings.TrimRight(text.String(), "\n"))
}

// wait passes a file to the shell and waits until it was run.
func (p *page) wait(ctx context.Context, file string, limit time.Duration) error {
	s := p.shell
	began := time.Now()
	if _, err := fmt.Fprintf(s.in, ". '%s' >'%s.out' 2>&1 </dev/null 3>&-\necho done >&3\n", file, file); err != nil {
		return fmt.Errorf("the shell is gone: %w", err)
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	var err error
	select {
	case <-s.done:
		return nil
	case <-s.gone:
		p.shell = nil
		if s.err == nil {
			return errors.New("it ended the shell")
		}
		return fmt.Errorf("it failed after %.0f s: %w", time.Since(began).Seconds(), s.err)
	case <-late.C:
		err = fmt.Errorf("it was not done after %s", limit)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	p.leave()
	return err
}

// firstWord is the maximum wait for the first output of a terminal. Later blocks depend
// on the terminal, and fail if it has not started.
const firstWord = 10 * time.Second

// terminal starts a block concurrently, and returns after its first output.
func (p *page) terminal(ctx context.Context, b Block, file string) error {
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	c := p.command(file)
	c.Stdout, c.Stderr = out, out
	err = c.Start()
	_ = out.Close() // the command has its own descriptor
	if err != nil {
		_ = in.Close() // no process writes to it
		return fmt.Errorf("%s:%d: start a terminal: %w", b.File, b.Line, err)
	}
	p.beside = append(p.beside, c)
	said := make(chan struct{})
	go func() {
		r := bufio.NewReader(in)
		_, _ = r.ReadString('\n') // the end of the output also ends the wait
		close(said)
		_, _ = io.Copy(io.Discard, r) // until the command ends
		_ = in.Close()                // read only
	}()
	late := time.NewTimer(firstWord)
	defer late.Stop()
	select {
	case <-said:
	case <-late.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// most is the maximum length of printed output in bytes, and wide that of one line.
const (
	most = 8 << 10
	wide = 400
)

func tail(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if len(l) > wide {
			lines[i] = strings.ToValidUTF8(l[:wide], "") + "…"
		}
	}
	s = strings.Join(lines, "\n")
	if len(s) > most {
		s = "…\n" + s[len(s)-most:]
	}
	return s
}

func indent(by, text string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		b.WriteString(by + line)
	}
	return b.String()
}
