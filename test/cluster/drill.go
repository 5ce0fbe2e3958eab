package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/anima-run/anima/test/cluster/drill"
	"github.com/anima-run/anima/test/cluster/internal/netns"
)

// drill runs the drill in this lab. A failed check of the drill is an error, too.
func (l *lab) drill(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet("drill", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), "usage: drill [FLAG…] [STEP…]\n\nSteps, by default all:\n"+drill.Describe()+"\nFlags:\n")
		fs.PrintDefaults()
	}
	var o drill.Options
	fs.IntVar(&o.Agents, "agents", 16, "agents of a load, each with one message under way")
	fs.IntVar(&o.Times, "times", 3, "how often nodes are drained and killed, each time another one")
	fs.Float64Var(&o.Rate, "rate", 0, "turns a second that the steady load must reach; the goal is 100, which takes more than two cores")
	fs.StringVar(&o.From, "from", "HEAD~1", "the `commit` to upgrade from")
	some := fs.String("steps", "", "`steps`, separated by commas; the same as naming them after the flags")
	junit := fs.String("junit", "", "a `file` for the report as JUnit has it")
	output := fs.String("o", "text", "text or json")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if *output != "text" && *output != "json" {
		return fmt.Errorf("output %q: want text or json", *output)
	}
	o.Steps = append(strings.FieldsFunc(*some, func(r rune) bool { return r == ',' }), fs.Args()...)
	if err := mustBeRoot(); err != nil {
		return err
	}
	if l.Bin == "" {
		return notRun("there is no lab; run up and load first")
	}
	stdout := os.Stdout
	if *output == "json" {
		os.Stdout = os.Stderr // output of the lab itself must not be mixed with the report
	}
	d, err := l.forDrill()
	if err != nil {
		return err
	}
	report, err := drill.Run(ctx, d, o, os.Stdout)
	if report == nil {
		return err
	}
	if *output == "json" {
		err = errors.Join(err, report.JSON(stdout))
	}
	if *junit != "" {
		err = errors.Join(err, writeWith(*junit, report.JUnit))
	}
	fmt.Println(report.Summary())
	if err == nil && report.Count(drill.Failed) > 0 {
		err = errors.New("the drill found something")
	}
	return err
}

// forDrill returns the functions of the lab that the drill uses.
func (l *lab) forDrill() (drill.Lab, error) {
	src, err := source()
	if err != nil {
		return drill.Lab{}, err
	}
	api, err := l.api(labName)
	if err != nil {
		return drill.Lab{}, err
	}
	return drill.Lab{
		Root: filepath.Join(src, "..", ".."), Nodes: l.Nodes, API: api, Cache: cache(),
		Kubectl: l.kubectl, Listen: listenOutside, Dial: netns.Dialer(labName),
		Inside: func(c *exec.Cmd) error {
			if path := filepath.Join(l.Bin, filepath.Base(c.Path)); c.Args[0] == "kubectl" {
				c.Path, c.Err = path, nil
			}
			c.Env = l.env()
			return netns.Do(labName, c.Start)
		},
		Node:        func(ctx context.Context, verb string, n int) error { return l.node(ctx, []string{verb, fmt.Sprint(n)}) },
		Load:        func(ctx context.Context, name, file string) error { return l.load(ctx, []string{name, file}) },
		Images:      l.newImages,
		FreeVolumes: l.freeVolumes,
		KEDA: func(ctx context.Context) (bool, error) {
			for _, p := range programs("keda") { // packing the images needs no compilation
				path, err := p.path()
				if err != nil {
					return false, err
				}
				if _, err := os.Stat(path); err != nil {
					return false, nil //nolint:nilerr // a missing program is the answer, not an error
				}
			}
			return true, l.keda(ctx)
		},
		Runbooks: func(ctx context.Context) error { return runbooks(ctx, nil) },
	}, nil
}

// newImages imports the images that were built since the lab was started.
func (l *lab) newImages(ctx context.Context) error {
	if l.Images == nil {
		l.Images = map[string]string{}
	}
	maps.Copy(l.Images, builtImages(l.hasKeda()))
	if err := l.save(); err != nil {
		return err
	}
	return l.importEverywhere(ctx)
}

// listenOutside listens in the network between the nodes, at an address that it adds to
// the loopback interface of that namespace. It closes every accepted connection.
func listenOutside(ctx context.Context, addr string) (io.Closer, error) {
	ip, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	change := func(verb string) error {
		_, err := command(context.WithoutCancel(ctx), "ip", "-n", labName, "addr", verb, ip+"/32", "dev", "lo")
		return err
	}
	if err := change("replace"); err != nil {
		return nil, err
	}
	var l net.Listener
	err = netns.Do(labName, func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, change("del"))
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return closer(func() error { return errors.Join(l.Close(), change("del")) }), nil
}

type closer func() error

func (c closer) Close() error { return c() }

func writeWith(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
