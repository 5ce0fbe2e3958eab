package rule

import (
	"slices"
	"strings"
)

// list is a set of protected names, compared by path element:
//
//	wallet.json       the last element
//	self-mod/code.ts  the last two elements
//	*.pem private-*   the end or the start of the last element
//	.ssh/             an element anywhere below the workspace
//	/etc/shadow       this path and all paths below it
//
// The rules of file tools and of shell commands share the lists.
type list struct {
	Names    []string `json:"names"`
	Except   []string `json:"except,omitempty"` // exempt from the entries for a last element
	exact    names
	folders  names
	pairs    [][2]string
	prefixes []string
	suffixes []string
	roots    [][]string
	except   map[string]bool
}

func newList(entries ...string) *list {
	l := &list{Names: entries, except: map[string]bool{}}
	for _, n := range entries {
		n = fold(n)
		switch head, tail, _ := strings.Cut(n, "/"); {
		case head == "":
			l.roots = append(l.roots, strings.Split(tail, "/"))
		case head == n && strings.HasPrefix(n, "*"):
			l.suffixes = append(l.suffixes, n[1:])
		case head == n && strings.HasSuffix(n, "*"):
			l.prefixes = append(l.prefixes, strings.TrimSuffix(n, "*"))
		case head == n:
			l.exact.add(n)
		case tail == "":
			l.folders.add(head)
		default:
			l.pairs = append(l.pairs, [2]string{head, tail})
		}
	}
	return l
}

func (l *list) exempt(entries ...string) *list {
	l.Except = entries
	for _, n := range entries {
		l.except[n] = true
	}
	return l
}

// match returns the entry that matches loc, or "".
func (l *list) match(loc location) string {
	n := len(loc.elems)
	if n == 0 {
		return ""
	}
	last := loc.elems[n-1]
	if e := l.matchName(last, loc.wild); e != "" {
		return e
	}
	if e := l.folders.pick(loc.elems[loc.below:], loc.wild); e != "" {
		return e + "/"
	}
	for _, p := range l.pairs {
		if n > 1 && covers(last, p[1]) && covers(loc.elems[n-2], p[0]) {
			return p[0] + "/" + p[1]
		}
	}
	for _, r := range l.roots {
		if n >= len(r) && slices.EqualFunc(loc.elems[:len(r)], r, func(e, want string) bool {
			return covers(e, want) || want != r[len(r)-1] && loc.wild && generic(e)
		}) {
			return "/" + strings.Join(r, "/")
		}
	}
	return ""
}

func (l *list) matchName(last string, wild bool) string {
	if l.except[last] {
		return ""
	}
	if e := l.exact.pick([]string{last}, wild); e != "" {
		return e
	}
	for _, s := range l.suffixes {
		if len(last) > len(s) && strings.HasSuffix(last, s) {
			return "*" + s
		}
	}
	for _, p := range l.prefixes {
		if strings.HasPrefix(last, p) || wild && covers(last, p) {
			return p + "*"
		}
	}
	return ""
}

// names is a set with a stable order, so that every evaluation finds the same entry for a
// pattern.
type names struct {
	set   map[string]bool
	order []string
}

func (n *names) add(name string) {
	if n.set == nil {
		n.set = map[string]bool{}
	}
	n.set[name] = true
	n.order = append(n.order, name)
}

// pick returns the name that matches one of elems, or "".
func (n *names) pick(elems []string, wild bool) string {
	for _, e := range elems {
		if n.set[e] {
			return e
		}
		if !wild {
			continue
		}
		for _, name := range n.order {
			if covers(e, name) {
				return name
			}
		}
	}
	return ""
}

// protectedPaths are the protected paths (docs/reference/policy.md, Path rules). Files and commands
// share them (docs/reference/policy.md, incomplete path lists).
type protectedPaths struct {
	Secrets   *list `json:"secrets"` // may not be read or written
	Protected *list `json:"guarded"` // may not be written
	Homes     *list `json:"homes"`   // may not be removed
	Self      *list `json:"self"`    // may be written from authority 80 on
	Notes     *list `json:"notes"`   // may be written from authority 50 on
}

func newProtectedPaths() *protectedPaths {
	source := func(names ...string) (all []string) {
		for _, n := range names {
			for _, ext := range []string{".ts", ".js", ".d.ts"} {
				all = append(all, n+ext)
			}
		}
		return all
	}
	protected := slices.Concat([]string{
		"constitution.md", "SOUL.md", "heartbeat.yml", "heartbeat.yaml", "package.json",
		"policy-rules/", "policy-engine/", "injection-defense/", "audit-log/",
		"/etc/systemd", "/proc", "/sys",
	}, source("injection-defense", "policy-engine", "audit-log", "self-mod/code", "self-mod/upstream",
		"self-mod/tools-manager", "agent/tools", "agent/loop", "skills/loader", "skills/registry"))
	return &protectedPaths{
		Secrets: newList(
			"wallet.json", "automaton.json", "config.json", "api-key", "api_key", ".env", ".env.*", ".envrc",
			"state.db", "state.db-wal", "state.db-shm", "state.db-journal",
			"id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", ".netrc", ".pgpass", ".git-credentials", ".npmrc", ".pypirc",
			"*.key", "*.pem", "*.p12", "*.pfx", "*.nk", "*.creds", "private-key*",
			".ssh/", ".gnupg/", ".gpg/", ".aws/", ".azure/", ".gcloud/", ".kube/", ".docker/", "keystore/",
			"/etc/passwd", "/etc/shadow", "/etc/gshadow", "/etc/sudoers", "/etc/sudoers.d", "/root/.ssh",
			"/dev/mem", "/dev/kmem", "/proc/kcore",
		).exempt(".env.example", ".env.sample", ".env.template"),
		Protected: newList(protected...),
		Homes:     newList(".automaton/", ".anima/"),
		Self: newList(slices.Concat(protected, []string{
			"AGENT.md", "AGENTS.md", "GENESIS.md", "HEARTBEAT.md", "SKILL.md", ".skill.json",
			"wallet.json", "config.json", "automaton.json",
			// Settings and hooks of git run commands at the next use of git, and decide where it
			// pushes to. The workspace is the home folder of commands.
			".git/", ".gitconfig", ".profile", ".bashrc", ".bash_profile",
		})...),
		Notes: newList("MEMORY.md", "WORKLOG.md"),
	}
}

// secret returns the entry that forbids reads and writes of loc, or "".
func (g *protectedPaths) secret(loc location) string {
	if e := g.Secrets.match(loc); e != "" {
		return e
	}
	// The files of a process expose its environment and memory, and its root and cwd
	// links bypass the comparison of paths.
	if len(loc.elems) > 2 && covers(loc.elems[0], "proc") {
		p := loc.elems[1]
		if p == "self" || p == "thread-self" || strings.Trim(p, "0123456789$*?"+unknown) == "" {
			return "/proc/" + p
		}
	}
	return ""
}

// protected returns the entry that forbids writes of loc, or "". Secrets are included.
func (g *protectedPaths) protected(loc location) string {
	if e := g.secret(loc); e != "" {
		return e
	}
	return g.Protected.match(loc)
}
