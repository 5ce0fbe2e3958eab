package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	scratch    = ".tmp" // TMPDIR, inside the workspace
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Environment is all that a command in the workspace dir sees of one, beside
// Spec.Env. Nothing of the service's is handed on.
func Environment(dir string) []string {
	return []string{
		"PATH=" + searchPath,
		"HOME=" + dir,
		"PWD=" + dir,
		"TMPDIR=" + filepath.Join(dir, scratch),
		"LANG=C.UTF-8",
		"GIT_CONFIG_NOSYSTEM=1", // Its file may hold secrets, and git stops at one it cannot read.
		"SHELL=/bin/sh",
		"TERM=dumb",
	}
}

// Finds says whether a command finds a program of that name.
func Finds(program string) bool {
	if program == "" || strings.ContainsAny(program, "/\x00") {
		return false
	}
	return slices.ContainsFunc(filepath.SplitList(searchPath), func(dir string) bool {
		info, err := os.Stat(filepath.Join(dir, program))
		return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	})
}

var variable = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)=[^\x00]*$`)

// checkEnv refuses variables that are none, that are given twice, or that
// would hide one of ours. The error holds no value.
func checkEnv(dir string, env []string) error {
	seen := map[string]bool{}
	for _, own := range Environment(dir) {
		name, _, _ := strings.Cut(own, "=")
		seen[name] = true
	}
	for _, v := range env {
		m := variable.FindStringSubmatch(v)
		switch {
		case m == nil:
			return fmt.Errorf("%w: an environment variable needs a name of letters, digits and _ and a value without NUL bytes", ErrInvalid)
		case seen[m[1]]:
			return fmt.Errorf("%w: the environment variable %s is set already", ErrInvalid, m[1])
		}
		seen[m[1]] = true
	}
	return nil
}
