package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// buildJaeger asks tools/jaeger for its program. Without that folder it is only
// said: the lab runs without Jaeger.
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
