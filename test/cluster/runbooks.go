package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/anima-run/anima/test/cluster/runbook"
)

// runbooks runs docs/runbooks in the lab, all or the named ones, with the overlay of the
// lab unless OVERLAY names another.
func runbooks(ctx context.Context, files []string) error {
	if err := mustBeRoot(); err != nil {
		return err
	}
	root, err := repository()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	overlay := os.Getenv("OVERLAY")
	if overlay == "" {
		overlay = filepath.Join(root, "deploy", "k8s", "overlays", "lab")
	}
	rep, err := runbook.Run(ctx, runbook.Options{
		Dir: filepath.Join(root, "docs", "runbooks"), Root: root, Files: files, Lab: self, Out: os.Stdout,
		Env: []string{"OVERLAY=" + overlay},
	})
	if err != nil {
		return err
	}
	fmt.Println(rep)
	if !rep.OK() {
		return errors.New("a runbook does not say the truth")
	}
	return nil
}

// repository returns the root of the project, which is the working directory or above it.
func repository() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "docs", "runbooks", "README.md")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("run it inside the repository: docs/runbooks is not there")
		}
		dir = filepath.Dir(dir)
	}
}
