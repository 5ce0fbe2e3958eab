package rule

import (
	"regexp"
	"strings"
)

// tables are the commands that have rules. A command that is in no table is allowed if
// its operands name no protected path.
type tables struct {
	Forbidden map[string]string `json:"forbidden"` // command → why
	Network   map[string]bool   `json:"network"`
	Fetchers  map[string]bool   `json:"fetchers"` // take URLs as operands
	Readers   map[string]bool   `json:"readers"`  // never write to their operands
	Writers   map[string]bool   `json:"writers"`  // write every operand
	LastOnly  map[string]bool   `json:"lastOnly"` // write to the last operand only
	Texts     map[string]bool   `json:"texts"`    // operands are text, not files
	// Patterns are commands with a pattern or a program as their first operand, and their
	// options with a value.
	Patterns map[string]map[string]bool `json:"patterns"`
	Excludes map[string]map[string]bool `json:"excludes"` // command → options with patterns of files to leave out
	Shells   map[string]bool            `json:"shells"`
	// ShellWords are long options of a shell that need only one hyphen.
	ShellWords map[string]bool    `json:"shellWords"`
	Languages  map[string]string  `json:"languages"` // interpreter → options with code as their value
	Databases  map[string]bool    `json:"databases"` // client → true if every table belongs to a server
	Wrappers   map[string]wrapper `json:"wrappers"`
	State      map[string]bool    `json:"state"` // tables of the agent's state
	GitReads   map[string]bool    `json:"gitReads"`
	GitCalls   map[string]bool    `json:"gitCalls"` // git subcommands that contact a remote
	// GitCommands are subcommands of git, and their options with a command as their value.
	GitCommands map[string]map[string]bool `json:"gitCommands"`
	GitSettings map[string]bool            `json:"gitSettings"` // with a command as their value, without the part in the middle
	CommandVars map[string]bool            `json:"commandVars"` // variables of the environment with a command as their value

	preload map[string]bool
	sql     *regexp.Regexp
	comment *regexp.Regexp
	sedExec *regexp.Regexp   // what comes before a command that a program of sed runs with e
	sedRuns []*regexp.Regexp // substitutions of sed with the flag e, each with the command as its group
}

// has reports whether a name is that of a command with files as its operands.
func (t *tables) has(name string) bool {
	_, searches := t.Patterns[name]
	_, runs := t.Languages[language(name)]
	return searches || runs || t.Readers[name] || t.Writers[name] || t.LastOnly[name] || t.Fetchers[name]
}

// wrapper is a command that runs its operands as a command.
type wrapper struct {
	Valued map[string]bool `json:"valued,omitempty"` // options that take the next word as their value
	Skip   int             `json:"skip,omitempty"`   // number of operands before the command
	Output map[string]bool `json:"output,omitempty"` // those of them with a file that is written
	Code   bool            `json:"code,omitempty"`   // after the skipped operands, -c has shell source
	Joined bool            `json:"joined,omitempty"` // operands are joined into shell source
	Stdin  bool            `json:"fed,omitempty"`    // operands from standard input are appended
}

func words(s string) map[string]bool {
	m := map[string]bool{}
	for w := range strings.FieldsSeq(s) {
		m[w] = true
	}
	return m
}

func newTables() *tables {
	t := &tables{
		Forbidden: map[string]string{},
		Network: words(`curl wget nc ncat netcat socat ssh scp sftp telnet ftp tftp aria2c http https httpie xh lynx w3m links
			dig nslookup host ping ping6 traceroute tracepath mtr nmap rclone ngrok cloudflared`),
		Fetchers: words(`git npm npx yarn pnpm pip pip3 pipx uv uvx poetry go cargo gem bundle composer apt apt-get apk dnf yum brew helm hg svn
			xdg-open open yt-dlp`),
		Readers: words(`cat tac less more most bat head tail wc nl od xxd hexdump strings grep egrep fgrep rg ag ls dir tree stat file
			du df md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum diff cmp comm cut paste uniq tr fold fmt column
			jq readlink realpath basename dirname test [ base64 base32 expand unexpand rev cd pushd which type npm npx yarn pnpm tsc jest`),
		Writers:  words(`tee touch mkdir truncate chmod chown chgrp shred mkfifo mknod setfacl chattr split csplit patch`),
		LastOnly: words(`cp rsync install ln link`),
		Texts:    words(`echo printf : true false return exit break continue shift sleep [[`), // [[ as a POSIX shell reads it
		Patterns: map[string]map[string]bool{
			"rg": words("-A -B -C -E -M -T -d -e -f -g -j -m -r -t --after-context --before-context --context --encoding --file --glob --iglob --ignore-file --max-columns " +
				"--max-count --max-depth --max-filesize --regexp --replace --sort --sortr --threads --type --type-not"),
			"ag": words("-A -B -C -G -W -g -m -p --after --before --context --depth --file-search-regex --ignore --ignore-dir --max-count --path-to-ignore --width"),
			"jq": words("-L -f --from-file --indent"), "yq": words("-I -f -o -p --from-file --indent --input-format --output-format"),
		},
		Excludes: map[string]map[string]bool{
			"tar": words("--exclude"), "rsync": words("--exclude"), "du": words("--exclude"), "diff": words("-x --exclude"),
			"grep": words("--exclude --exclude-dir"), "ls": words("-I --ignore --hide"), "tree": words("-I"),
		},
		Shells:     words(`sh bash dash zsh ksh mksh ash rbash fish`),
		ShellWords: words(`-login -noprofile -norc -posix -restricted -verbose -noediting -debugger`),
		Languages: map[string]string{
			"python": "-c", "node": "-e -p --eval --print", "nodejs": "-e -p --eval --print", "deno": "eval", "bun": "-e --eval",
			"perl": "-e -E", "ruby": "-e", "php": "-r", "lua": "-e", "tclsh": "", "Rscript": "-e",
			"awk": "", "gawk": "", "mawk": "", "nawk": "", "sed": "", "gsed": "",
		},
		Databases: map[string]bool{"sqlite3": false, "sqlite": false, "duckdb": false, "psql": true, "mysql": true, "mariadb": true},
		Wrappers: map[string]wrapper{
			"nohup": {}, "setsid": {}, "builtin": {}, "busybox": {}, "toybox": {}, "unbuffer": {}, "chronic": {},
			"nice":    {Valued: words("-n --adjustment")},
			"ionice":  {Valued: words("-c -n --class --classdata")},
			"taskset": {Skip: 1}, "setarch": {Skip: 1}, "valgrind": {},
			"ssh-agent": {Valued: words("-a -t -E -O -P")},
			"fakeroot":  {Valued: words("-l -s -i -b --lib --faked"), Output: words("-s")},
			"timeout":   {Valued: words("-s -k --signal --kill-after"), Skip: 1},
			"stdbuf":    {Valued: words("-i -o -e --input --output --error")},
			"time":      {Valued: words("-f -o --format --output"), Output: words("-o --output")},
			"exec":      {Valued: words("-a")},
			"command":   {},
			"flock":     {Valued: words("-w -E --timeout --wait --conflict-exit-code"), Skip: 1, Code: true},
			"watch":     {Valued: words("-n -q -s --interval --equexit --shotsdir"), Joined: true},
			"xargs": {
				Valued: words("-n -P -I -L -d -s -a -E --max-args --max-procs --delimiter --max-chars --arg-file --process-slot-var"), Stdin: true,
			},
			"parallel": {
				Valued: words("-j -a -C -d -E -I -L -n -N -P -S -s --jobs --max-procs --arg-file --colsep --delimiter --max-args --max-replace-args --max-chars --sshlogin " +
					"--results --joblog --tmpdir --workdir --timeout --retries --delay --halt --load --memfree --basefile --return --env"),
				Output: words("--results --joblog"), Joined: true, Stdin: true,
			},
			"strace": {
				Valued: words("-a -b -e -E -I -o -O -p -P -s -S -u -U -X --output --trace --attach --env --user --columns --string-limit"),
				Output: words("-o --output"),
			},
			"ltrace": {Valued: words("-a -A -D -e -F -l -n -o -p -s -u -w -x --output --library"), Output: words("-o --output")},
			"sudo":   {Valued: words("-u -g -h -p -C -D -R -T -r -t -U --user --group --host --prompt --chdir")},
			"doas":   {Valued: words("-u -C")},
		},
		State: words(`schema_version identity turns tool_calls heartbeat_entries transactions installed_tools modifications kv skills children
			registry reputation inbox_messages policy_decisions spend_tracking heartbeat_schedule heartbeat_history wake_events heartbeat_dedup
			soul_history working_memory episodic_memory session_summaries semantic_memory procedural_memory relationship_memory inference_costs
			model_registry child_lifecycle_events discovered_agents_cache onchain_transactions metric_snapshots goals task_graph event_stream
			knowledge_store`), // docs/reference/policy.md, State tables
		GitReads: words(`status diff log show add commit blame grep ls-files ls-tree cat-file rev-parse describe shortlog`),
		GitCalls: words(`push pull fetch ls-remote`),
		GitCommands: map[string]map[string]bool{
			"rebase": words("-x --exec"), "difftool": words("-x --extcmd"),
			"clone": words("-u --upload-pack"), "fetch": words("--upload-pack"), "pull": words("--upload-pack"), "ls-remote": words("--upload-pack --exec"),
			"push": words("--receive-pack --exec"), "archive": words("--exec"),
			"filter-branch": words("--setup --env-filter --tree-filter --index-filter --parent-filter --msg-filter --commit-filter --tag-name-filter"),
		},
		GitSettings: words(`core.pager core.editor core.sshcommand core.fsmonitor core.hookspath core.askpass core.gitproxy core.alternaterefscommand
			diff.external diff.textconv diff.command difftool.cmd filter.clean filter.smudge filter.process gpg.program include.path includeif.path
			init.templatedir interactive.difffilter merge.driver mergetool.cmd remote.uploadpack remote.receivepack sequence.editor trailer.cmd
			trailer.command uploadpack.packobjectshook`),
		CommandVars: words(`GIT_EDITOR GIT_SEQUENCE_EDITOR GIT_PAGER GIT_ASKPASS SSH_ASKPASS GIT_SSH EDITOR VISUAL PAGER`),
		preload: words(`LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT BASH_ENV ENV PROMPT_COMMAND GIT_SSH_COMMAND GIT_EXTERNAL_DIFF GIT_CONFIG_COUNT GIT_CONFIG_PARAMETERS
			GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_EXEC_PATH GIT_PROXY_COMMAND GIT_TEMPLATE_DIR NODE_OPTIONS PYTHONSTARTUP PERL5OPT RUBYOPT`),
		sql: regexp.MustCompile("(?i)\\b(drop\\s+(?:table|view|index|trigger|database|schema)|delete\\s+from|truncate(?:\\s+table)?|alter\\s+table|" +
			"update(?:\\s+or\\s+\\w+)?|insert(?:\\s+or\\s+\\w+)?\\s+into|replace\\s+into)\\s+(?:if\\s+exists\\s+)?(?:only\\s+)?" +
			"[\"'`\\[]*(?:\\w+[\"'`\\]]*\\.[\"'`\\[]*)?(\\w+)"),
		comment: regexp.MustCompile(`(?s)/\*.*?\*/|--[^\n]*`),
		sedExec: regexp.MustCompile(`(?m)(?:^|\d|[^\w\s-])[IM]*\s*e\s+`), // the e after an address or none
		sedRuns: []*regexp.Regexp{
			// s/…/command/e
			regexp.MustCompile(`s/(?:[^/\\]|\\.)*/((?:[^/\\]|\\.)*)/[a-zA-Z0-9]*e`),
			regexp.MustCompile(`s\|(?:[^|\\]|\\.)*\|((?:[^|\\]|\\.)*)\|[a-zA-Z0-9]*e`),
			regexp.MustCompile(`s#(?:[^#\\]|\\.)*#((?:[^#\\]|\\.)*)#[a-zA-Z0-9]*e`),
			regexp.MustCompile(`s,(?:[^,\\]|\\.)*,((?:[^,\\]|\\.)*),[a-zA-Z0-9]*e`),
		},
	}
	for _, name := range []string{"grep", "egrep", "fgrep"} {
		t.Patterns[name] = words("-A -B -C -D -d -e -f -m --after-context --before-context --binary-files --context --devices --directories --exclude --exclude-dir " +
			"--exclude-from --file --include --label --max-count --regexp")
	}
	for _, name := range []string{"sed", "gsed"} {
		t.Patterns[name] = sedValued
	}
	for _, name := range []string{"awk", "gawk", "mawk", "nawk"} {
		t.Patterns[name] = awkValued
	}
	for name := range t.Network {
		t.Fetchers[name] = true
	}
	for why, names := range map[string]string{
		"changes who runs it; run it without":                                  "su pkexec runuser newgrp",
		"stops or restarts the machine":                                        "shutdown reboot halt poweroff init telinit kexec",
		"controls services of the machine":                                     "systemctl service initctl rc-service launchctl loginctl systemd-run",
		"runs work after the call has ended; use your heartbeat":               "crontab at batch atd",
		"changes devices and file systems":                                     "mount umount fdisk sfdisk cfdisk parted mkswap swapon swapoff losetup cryptsetup wipefs blkdiscard hdparm debugfs",
		"changes the kernel":                                                   "insmod rmmod modprobe sysctl",
		"leaves the sandbox":                                                   "chroot unshare nsenter pivot_root capsh setcap docker podman nerdctl ctr runc kubectl",
		"changes accounts":                                                     "passwd chpasswd useradd usermod userdel groupadd groupmod visudo chsh",
		"changes the firewall":                                                 "iptables ip6tables nft ufw",
		"ends processes by name, others' too; use kill with your own jobs":     "pkill killall killall5 skill snice",
		"prints the environment, secrets included; name the variable you need": "printenv",
		"controls other processes":                                             "gdb reptyr",
	} {
		for n := range words(names) {
			t.Forbidden[n] = why
		}
	}
	return t
}
