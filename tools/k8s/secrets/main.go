// Command secrets creates the secrets of an overlay of deploy/k8s, as files that its
// generators read: a key for each user of NATS, a password for each role of Postgres, and
// the keys and tokens of the services. It must not overwrite or print a secret, and does
// not access a cluster.
//
// To change a secret, delete its file and run the command again.
package main

import (
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

const usage = `usage: secrets [-o DIR [-missing]]

Creates the secrets of an overlay in DIR. Without -missing, DIR must have none of them.
Without -o, it creates the missing secrets of overlays/dev.

`

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "secrets:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("secrets", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("o", "", "the `folder` of the secrets; its parent folder must exist")
	missing := flags.Bool("missing", false, "keep existing secrets and create the missing ones")
	flags.Usage = func() {
		_, _ = io.WriteString(stderr, usage) // a failed write of the help text has no consequence
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q: the folder is given by -o", flags.Arg(0))
	}
	if *dir == "" {
		here, err := os.Getwd()
		if err != nil {
			return err
		}
		if *dir, err = devFolder(here); err != nil {
			return err
		}
		*missing = true
	}
	made, err := makeAll(*dir, *missing, rand.Reader)
	for _, name := range made {
		_, _ = fmt.Fprintln(stdout, "made", filepath.Join(*dir, name))
	}
	if err == nil && len(made) == 0 {
		_, _ = fmt.Fprintln(stdout, "nothing is missing in", *dir)
	}
	return err
}

// devFolder returns the folder of the secrets of overlays/dev, for a folder of the
// repository.
func devFolder(from string) (string, error) {
	for dir := from; ; dir = filepath.Dir(dir) {
		overlay := filepath.Join(dir, "deploy", "k8s", "overlays", "dev")
		if _, err := os.Stat(overlay); err == nil {
			return filepath.Join(overlay, "secrets"), nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is in no folder with deploy/k8s: give the folder with -o", from)
		}
	}
}
