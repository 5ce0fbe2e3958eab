// Command fastclock writes a build overlay that makes the clock of a Go program run
// faster, so that a test can cover a day in minutes. It changes the clock of the runtime,
// which time.Now, timers and deadlines of connections share. Programs that are built with
// one overlay agree on the time when they run on one machine. Other programs, the kernel
// and file times keep the real clock.
//
//	go run ./e2e/fastclock -speed 60 -o .bin/fastclock
//	GOFLAGS=-overlay=$PWD/.bin/fastclock/overlay.json go test ./e2e
//
// It works for linux/amd64 and the version of Go that it was written for: it fails unless
// each line that it changes occurs exactly once. It must not be used for anything but
// tests.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// epoch is the time of day at which the monotonic clock is 0, in nanoseconds since 1970:
// 1 January 2027. It is a constant, so that the same overlay builds the same programs.
const epoch = 1_798_761_600_000_000_000

// change replaces text in a file of package runtime.
type change struct{ file, from, to string }

// wallClock replaces the assembly that reads both clocks.
const wallClock = `package runtime

import _ "unsafe" // for go:linkname

//go:linkname time_now time.now
func time_now() (sec int64, nsec int32, mono int64) {
	mono = nanotime()
	wall := %d + mono
	return wall / 1e9, int32(wall %% 1e9), mono
}
`

func changes(speed int) []change {
	return []change{
		{"time_nofake.go", "return nanotime1()", fmt.Sprintf("return nanotime1() * %d", speed)},
		{"os_linux.go", "\tvar ts timespec\n\tts.setNsec(ns)\n\tfutex(", fmt.Sprintf("\tvar ts timespec\n\tts.setNsec(ns/%d + 1)\n\tfutex(", speed)},
		{"netpoll_epoll.go", "\tvar waitms int32\n", fmt.Sprintf("\tif delay > 0 {\n\t\tdelay = delay/%d + 1\n\t}\n\tvar waitms int32\n", speed)},
		{"proc.go", "const forcePreemptNS = 10 * 1000 * 1000", fmt.Sprintf("const forcePreemptNS = %d * 10 * 1000 * 1000", speed)},
		{"timeasm.go", "", fmt.Sprintf(wallClock, epoch)},
		{"time_linux_amd64.s", "", "// The clock is in timeasm.go.\n"},
	}
}

func main() {
	speed := flag.Int("speed", 60, "seconds of the program's clock in a second")
	out := flag.String("o", "", "folder for the overlay")
	flag.Parse()
	if err := write(*speed, *out); err != nil {
		fmt.Fprintln(os.Stderr, "fastclock:", err)
		os.Exit(1)
	}
}

func write(speed int, out string) error {
	switch {
	case runtime.GOOS != "linux" || runtime.GOARCH != "amd64":
		return fmt.Errorf("the fast clock supports linux/amd64, not %s/%s", runtime.GOOS, runtime.GOARCH)
	case speed < 1 || speed > 1000:
		return fmt.Errorf("-speed %d: want 1 to 1000", speed)
	case out == "":
		return errors.New("no output folder: give -o")
	}
	out, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	root, err := exec.CommandContext(context.Background(), "go", "env", "GOROOT").Output()
	if err != nil {
		return fmt.Errorf("go env GOROOT: %w", err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil { //nolint:gosec // sources, as the files that they replace
		return err
	}
	replace := map[string]string{}
	for _, c := range changes(speed) {
		path := filepath.Join(strings.TrimSpace(string(root)), "src", "runtime", c.file)
		text := c.to
		if c.from != "" {
			old, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if n := strings.Count(string(old), c.from); n != 1 {
				return fmt.Errorf("%s has %q %d times, want once: %s is not supported", path, c.from, n, runtime.Version())
			}
			text = strings.Replace(string(old), c.from, c.to, 1)
		}
		replace[path] = filepath.Join(out, c.file)
		if err := os.WriteFile(replace[path], []byte(text), 0o644); err != nil { //nolint:gosec // as above
			return err
		}
	}
	data, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "overlay.json"), data, 0o644) //nolint:gosec // as above
}
