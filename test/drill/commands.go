package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// command is a command of the machines below the cluster, which a flag gives: text for
// sh -c with placeholders such as {node}. It is missing if the text is empty.
type command struct {
	flag, does string
	places     []string // placeholders that the text must contain
	optional   []string // placeholders that it may contain
	text       string
}

// newCommands returns all commands, without their texts.
func newCommands() []*command {
	return []*command{
		{flag: "node-stop", does: "kills a node at once, as a power failure would", places: []string{"node"}},
		{flag: "node-start", does: "starts a killed node", places: []string{"node"}},
		{flag: "load", does: "imports an image archive on every node; the archive contains the image's name, too", places: []string{"archive"}, optional: []string{"image"}},
		{flag: "volumes", does: "makes the volumes of deleted claims available again; not needed if the cluster does so"},
		{flag: "keda", does: "installs KEDA; not needed if it is installed"},
		{flag: "busy", does: "keeps the processors of the nodes busy for a time", places: []string{"seconds"}},
		{flag: "runbooks", does: "runs the commands of docs/runbooks in the cluster"},
	}
}

func (c *command) usage() string {
	text := "`command` that " + c.does
	for _, p := range slices.Concat(c.places, c.optional) {
		text += "; {" + p + "} is replaced"
	}
	return text
}

// String returns the text; it is part of [flag.Value].
func (c *command) String() string { return c.text }

var place = regexp.MustCompile(`\{([a-z]+)\}`)

// Set sets the text; it is part of [flag.Value].
func (c *command) Set(text string) error {
	var found []string
	for _, m := range place.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(c.places, m[1]) && !slices.Contains(c.optional, m[1]) {
			return fmt.Errorf("unknown placeholder %s", m[0])
		}
		found = append(found, m[1])
	}
	for _, p := range c.places {
		if text != "" && !slices.Contains(found, p) {
			return fmt.Errorf("the placeholder {%s} is missing", p)
		}
	}
	c.text = text
	return nil
}

// with returns the text with the placeholders replaced by the values, quoted for sh.
func (c *command) with(values map[string]string) string {
	return place.ReplaceAllStringFunc(c.text, func(p string) string {
		return "'" + strings.ReplaceAll(values[strings.Trim(p, "{}")], "'", `'\''`) + "'"
	})
}

// notRun is the error of a command that cannot do its work on this machine. Its exit
// status is exitNotRun, as that of test/cluster.
type notRun string

func (e notRun) Error() string { return string(e) }

const exitNotRun = 3

// run runs the command for limit at most and writes its output to out, too.
func (c *command) run(ctx context.Context, out io.Writer, limit time.Duration, values map[string]string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not done after %s", limit))
	defer cancel()
	var said strings.Builder
	p := exec.CommandContext(ctx, "sh", "-c", c.with(values))
	p.Stdout = io.MultiWriter(&said, out)
	p.Stderr = p.Stdout
	// Children of sh get the signal, too.
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.Cancel = func() error { return syscall.Kill(-p.Process.Pid, syscall.SIGTERM) }
	p.WaitDelay = 10 * time.Second
	err := p.Run()
	var exit *exec.ExitError
	switch text := tail(said.String(), 1500); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("-%s: %w: %s", c.flag, context.Cause(ctx), text)
	case errors.As(err, &exit) && exit.ExitCode() == exitNotRun:
		return notRun("-" + c.flag + ": " + text)
	default:
		return fmt.Errorf("-%s: %w: %s", c.flag, err, text)
	}
}

// command returns the command of a flag.
func (o Options) command(flag string) *command {
	i := slices.IndexFunc(o.commands, func(c *command) bool { return c.flag == flag })
	return o.commands[i]
}

// missing returns the reason why a step with these commands cannot be run, or "".
func (o Options) missing(flags ...string) string {
	var out []string
	for _, f := range flags {
		if c := o.command(f); c.text == "" {
			out = append(out, "-"+f+" is not set, the command that "+c.does)
		}
	}
	return strings.Join(out, "; ")
}

// host runs the command of a flag.
func (w *world) host(ctx context.Context, flag string, limit time.Duration, values map[string]string) error {
	return w.command(flag).run(ctx, w.report.out, limit, values)
}
