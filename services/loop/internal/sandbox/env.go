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
	scratch    = ".tmp" // TMPDIR, relative to the workspace
	searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Environment returns the environment of a command in the workspace dir, without
// Spec.Env. It contains no variable of the service.
func Environment(dir string) []string {
	return []string{
		"PATH=" + searchPath,
		"HOME=" + dir,
		"PWD=" + dir,
		"TMPDIR=" + filepath.Join(dir, scratch),
		"LANG=C.UTF-8",
		"GIT_CONFIG_NOSYSTEM=1", // the system's file may contain secrets, and git fails if it cannot read it
		"SHELL=/bin/sh",
		"TERM=dumb",
	}
}

// proxyEnvironment returns the additional variables of a command with a network. Programs
// read the upper-case or the lower-case names; Node.js reads them only if
// NODE_USE_ENV_PROXY is set.
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

// proxyPort returns the port of a proxy's URL, or 0 if the URL is not http with a
// loopback address.
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

// Finds reports whether a command would find a program of this name in its PATH.
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

// checkEnv refuses invalid variables, repeated variables and variables that [Environment]
// or proxyEnvironment sets. The error contains no value.
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
