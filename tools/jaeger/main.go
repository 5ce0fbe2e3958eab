// Command jaeger builds Jaeger v2 from its Go module and runs it on this machine, for
// development, tests and the lab only. One checksum pins the build: the module contains
// the go.mod and go.sum that it is built with.
//
// Its web page is a placeholder, because the module does not contain the page; all data
// is available through the API. Other clusters use Jaeger's own images, which have the
// page (deploy/k8s/components/jaeger).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/anima-run/anima/tools/jaeger/build"
)

const usage = `usage: jaeger build [-o FILE]     build it into the cache; FILE becomes a link to it
       jaeger run [flags]         build it if necessary and run it until interrupted
       jaeger path                print where it is, or would be, in the cache
       jaeger config [flags]      print the configuration files that run would use
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "jaeger:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		args = []string{""}
	}
	switch cmd, args := args[0], args[1:]; cmd {
	case "build":
		f := flag.NewFlagSet("build", flag.ContinueOnError)
		link := f.String("o", "", "make this `file` a link to the program")
		if err := f.Parse(args); err != nil {
			return err
		}
		bin, err := build.Build(ctx, *link)
		if err == nil {
			fmt.Println(bin)
		}
		return err
	case "path":
		bin, err := build.Path()
		if err == nil {
			fmt.Println(bin)
		}
		return err
	case "run", "config":
		var o options
		f := o.flags(cmd)
		if err := f.Parse(args); err != nil {
			return err
		}
		if f.NArg() > 0 {
			return fmt.Errorf("unexpected %q; flags only, see jaeger %s -h", f.Args(), cmd)
		}
		if cmd == "config" {
			return o.print(os.Stdout)
		}
		return serve(ctx, o)
	default:
		fmt.Fprint(os.Stderr, usage)
		return errors.New("no command is given")
	}
}
