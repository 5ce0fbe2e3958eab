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
	src, err := source()
	if err != nil {
		return err
	}
	root := filepath.Join(src, "..", "..")
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
