package memory

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// Class is the class of a turn (docs/reference/memory.md, Turn classes).
type Class string

// The six classes.
const (
	Strategic     Class = "strategic"
	Productive    Class = "productive"
	Communication Class = "communication"
	Maintenance   Class = "maintenance"
	Idle          Class = "idle"
	Failed        Class = "error"
)

// importance is the importance of an episode by class (docs/reference/memory.md, Turn
// classes).
var importance = map[Class]float64{Strategic: 0.9, Failed: 0.8, Productive: 0.7, Communication: 0.6, Maintenance: 0.3, Idle: 0.1}

// Tools that make a turn strategic, communication or productive
// (docs/reference/memory.md, Turn classes).
var (
	strategic     = []string{"update_genesis_prompt", "edit_own_file", "modify_heartbeat", "spawn_child", "register_erc8004", "update_agent_card", "install_mcp_server", "update_soul"}
	communication = []string{"send_message", "check_social_inbox", "give_feedback", "note_about_agent"}
	productive    = []string{"exec", "write_file", "read_file", "git_commit", "git_push", "install_npm_package", "create_sandbox", "expose_port", "register_domain", "manage_dns", "install_skill", "create_skill", "save_procedure", "set_goal"}
)

var troubled = regexp.MustCompile(`(?i)error|failed|exception|blocked|denied`)

// Classify returns the class of a turn, by the first rule that matches.
func Classify(t api.Turn) Class {
	uses := func(tools []string) bool {
		return slices.ContainsFunc(t.Calls, func(c api.CallState) bool { return slices.Contains(tools, c.Tool) })
	}
	switch {
	case slices.ContainsFunc(t.Calls, failed):
		return Failed
	case len(t.Calls) == 0 && troubled.MatchString(t.Thinking):
		return Failed
	case uses(strategic):
		return Strategic
	case uses(communication):
		return Communication
	case uses(productive):
		return Productive
	case len(t.Calls) == 0 && utf8.RuneCountInString(t.Thinking) < 100:
		return Idle
	}
	return Maintenance
}

func failed(c api.CallState) bool { return c.Outcome != api.OutcomeOK }

// labels are the labels of errors; the first match counts (docs/reference/memory.md,
// Error labels). A refusal by policy is first, because it may quote any text.
var labels = []struct {
	label string
	text  *regexp.Regexp
}{
	{"POLICY_BLOCKED", regexp.MustCompile(`(?i)^(policy denied|denied by policy)`)},
	{"PATH_TRAVERSAL", regexp.MustCompile(`(?i)path traversal`)},
	{"PERMISSION_DENIED", regexp.MustCompile(`(?i)permission denied|access denied|forbidden`)},
	{"TIMEOUT", regexp.MustCompile(`(?i)time(d)? ?out|deadline exceeded`)},
	{"NOT_FOUND", regexp.MustCompile(`(?i)not found|enoent|no such file`)},
	{"RATE_LIMIT", regexp.MustCompile(`(?i)rate.?limit|too many requests|\b429\b`)},
	{"ADDRESS_IN_USE", regexp.MustCompile(`(?i)eaddrinuse|address already in use`)},
	{"CONNECTION_REFUSED", regexp.MustCompile(`(?i)econnrefused|connection refused`)},
	{"OUT_OF_MEMORY", regexp.MustCompile(`(?i)out of memory|\boom\b|cannot allocate memory`)},
	{"SYNTAX_ERROR", regexp.MustCompile(`(?i)syntax ?error|unexpected token|parse error`)},
	{"POLICY_BLOCKED", regexp.MustCompile(`(?i)policy|blocked`)},
}

var notAlnum = regexp.MustCompile(`[^A-Za-z0-9]+`)

// Label returns the label of an error by its text.
func Label(text string) string {
	for _, l := range labels {
		if l.text.MatchString(text) {
			return l.label
		}
	}
	if s := strings.ToUpper(strings.Trim(notAlnum.ReplaceAllString(sanitize.First(text, 50), "_"), "_")); s != "" {
		return s
	}
	return "UNKNOWN"
}

// Digest holds the memories of a turn.
type Digest struct {
	Episode Episode
	Facts   []Fact
	Notes   []Note
	Met     []Relation
}

// noteLife is the time after which an observation in working memory expires.
const noteLife = 24 * time.Hour

// DigestTurn derives the memories of a turn (docs/reference/memory.md, Ingestion). It
// depends on the turn only, so another replica gets the same memories with the same ids.
func DigestTurn(t api.Turn) Digest {
	class := Classify(t)
	d := Digest{Episode: Episode{
		ID: t.ID, Session: t.Session, Type: "thinking", Summary: summary(t), Outcome: "neutral", Class: class,
		Importance: importance[class], By: t.By, At: t.EndedAt,
	}}
	if len(t.Calls) > 0 {
		d.Episode.Type, d.Episode.Outcome = "tool:"+sanitize.First(t.Calls[0].Tool, 64), "success"
		if slices.ContainsFunc(t.Calls, failed) {
			d.Episode.Outcome = "failure"
		}
	}
	if utf8.RuneCountInString(t.Thinking) > 200 {
		d.Episode.Detail = sanitize.First(t.Thinking, 500)
	}
	for _, c := range t.Calls {
		d.call(t, c)
	}
	d.Facts = append(d.Facts, Knowledge(t)...)
	d.inbox(t)
	return d
}

func summary(t api.Turn) string {
	var parts []string
	if len(t.Calls) > 0 {
		var tools []string
		for _, c := range t.Calls {
			how := "ok"
			if failed(c) {
				how = "FAILED"
			}
			tools = append(tools, fmt.Sprintf("%s(%s)", sanitize.First(c.Tool, 64), how))
		}
		parts = append(parts, "Tools: "+strings.Join(tools, ", "))
	}
	if text := strings.TrimSpace(sanitize.First(t.Thinking, 150)); text != "" {
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return "No activity"
	}
	return strings.Join(parts, " | ")
}

// call adds the memories of a tool call. The answer of a built-in tool about the agent's
// own state has the agent as its origin; any other content is external, whatever the
// principal of the turn. So is all content of an imported turn, whose calls no tool of ours
// has answered.
func (d *Digest) call(t api.Turn, c api.CallState) {
	fact := func(f Fact) {
		f.Turn, f.At, f.Source = t.ID, t.EndedAt, "tool:"+c.Tool
		d.Facts = append(d.Facts, f)
	}
	ours, outside := api.Principal{Kind: api.Self}, api.Principal{Kind: api.External}
	if t.By.Kind == api.External {
		ours = outside
	}
	var args struct {
		To     string `json:"to_address"`
		Reason string `json:"reason"`
		Path   string `json:"path"`
	}
	_ = json.Unmarshal(c.Arguments, &args) // arguments that do not match are left empty
	if failed(c) {
		text := cmp.Or(c.Error, c.Result)
		by := outside
		if c.Action != "" && c.Action != api.Allow {
			by = ours // the text is policy's, and not that of the service that executes the call
		}
		fact(Fact{Category: "environment", Key: "tool_error:" + sanitize.First(c.Tool, 64) + ":" + Label(text), Value: sanitize.First(text, 200), Counts: true, By: by})
		return
	}
	switch c.Tool {
	case "check_credits":
		fact(Fact{Category: "financial", Key: "last_known_balance", Value: sanitize.First(c.Result, 500), Confidence: 1, By: ours})
	case "check_usdc_balance":
		fact(Fact{Category: "financial", Key: "usdc_balance", Value: sanitize.First(c.Result, 500), Confidence: 1, By: ours})
	case "system_synopsis":
		fact(Fact{Category: "self", Key: "system_synopsis", Value: sanitize.First(c.Result, 500), Confidence: 1, By: ours})
	case "discover_agents":
		fact(Fact{Category: "environment", Key: "known_agents", Value: sanitize.First(c.Result, 500), Confidence: 0.8, By: outside})
	case "send_message":
		if args.To != "" {
			d.Met = append(d.Met, Relation{Address: sanitize.First(args.To, 64), Kind: "contacted", Met: true, By: t.By, At: t.EndedAt})
		}
	case "sleep":
		d.note(t, c, "observation", 0.3, "went to sleep: "+sanitize.First(args.Reason, 200), t.EndedAt+noteLife.Microseconds())
	case "edit_own_file":
		d.note(t, c, "decision", 0.9, "changed my own file "+sanitize.First(args.Path, 200), 0)
	case "update_genesis_prompt":
		d.note(t, c, "decision", 0.9, "changed my genesis prompt: "+sanitize.First(args.Reason, 200), 0)
	}
}

// ProcedureOf returns the name in the arguments of a recall_procedure call, "" if they
// have none.
func ProcedureOf(arguments string) string {
	var args struct {
		Name string `json:"name"`
	}
	_ = json.Unmarshal([]byte(arguments), &args) // arguments that do not match have no name
	return args.Name
}

func (d *Digest) note(t api.Turn, c api.CallState, kind string, priority float64, content string, expires int64) {
	d.Notes = append(d.Notes, Note{
		ID: t.ID + "." + strconv.Itoa(c.Index), Session: t.Session, Kind: kind, Content: content, Priority: priority,
		Turn: t.ID, By: t.By, Expires: expires, At: t.EndedAt,
	})
}

// peerLine matches the line before each message of a peer in a run's input. The message
// itself is quoted, so none of its lines matches.
var peerLine = regexp.MustCompile(`(?m)^\[message from peer (\S{1,64})(?: \((.{1,128})\))?\]$`)

// inbox adds a relation for each peer with a message in the input.
func (d *Digest) inbox(t api.Turn) {
	seen := map[string]bool{}
	for _, m := range peerLine.FindAllStringSubmatch(t.Input, -1) {
		if key := strings.ToLower(m[1]); !seen[key] {
			seen[key] = true
			d.Met = append(d.Met, Relation{
				Address: m[1], Name: m[2], Kind: "messaged_us", Met: true, At: t.EndedAt,
				By: api.Principal{Kind: api.Peer, Address: m[1]},
			})
		}
	}
}

var countMark = regexp.MustCompile(`\((\d{1,9})x\)$`)

// Counted returns f with the number of observations appended to its value, one more than
// in old, and the confidence for that number: 0.5 + 0.1 for each, at most 1
// (docs/reference/memory.md, Ingestion).
func Counted(old string, f Fact) Fact {
	n := 1
	if m := countMark.FindStringSubmatch(old); m != nil {
		if before, err := strconv.Atoi(m[1]); err == nil {
			n = before + 1
		}
	}
	f.Value = fmt.Sprintf("%s (%dx)", f.Value, n)
	f.Confidence = min(1, 0.5+0.1*float64(n))
	return f
}
