package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// buildJaeger builds Jaeger with tools/jaeger. If that folder does not exist it prints a
// message only: the lab can run without Jaeger.
func buildJaeger(ctx context.Context) error {
	if _, err := jaegerBinary(); err == nil {
		return nil
	}
	src, err := source()
	if err != nil {
		return err
	}
	script := filepath.Join(src, "..", "..", "tools", "jaeger", "build.sh")
	if _, err := os.Stat(script); err != nil {
		fmt.Println("         NOT BUILT: jaeger, there is no tools/jaeger/build.sh")
		return nil
	}
	c := exec.CommandContext(ctx, script)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("tools/jaeger/build.sh: %w", err)
	}
	return nil
}
