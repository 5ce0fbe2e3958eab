package sandbox

import (
	"fmt"
	"net/netip"
	"net/url"
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

// proxyEnvironment is what a command with a network sees besides. Programs read
// either case; Node.js needs to be told that it shall read them at all.
func proxyEnvironment(proxy string) []string {
	if proxy == "" {
		return nil
	}
	var all []string
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"} {
		all = append(all, name+"="+proxy, strings.ToLower(name)+"="+proxy)
	}
	return append(all, "NODE_USE_ENV_PROXY=1")
}

// proxyPort is the port of a proxy's URL, 0 when it is not one on this machine.
func proxyPort(proxy string) uint16 {
	u, err := url.Parse(proxy)
	if err != nil || u.Scheme != "http" {
		return 0
	}
	at, err := netip.ParseAddrPort(u.Host)
	if err != nil || !at.Addr().IsLoopback() {
		return 0
	}
	return at.Port()
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
func checkEnv(dir, proxy string, env []string) error {
	seen := map[string]bool{}
	for _, own := range append(Environment(dir), proxyEnvironment(proxy)...) {
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
