package goal

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
)

// Bounds of a plan, so that one answer of a model cannot fill the queue.
const (
	MaxTasks   = 20
	maxRoles   = 5
	maxTitle   = 200      // bytes
	maxWords   = 8 << 10  // bytes of any other text
	maxPlan    = 64 << 10 // bytes of the whole answer
	maxTimeout = 4 * 60 * 60 * 1000
	maxCents   = int64(api.MaxMicros/api.Cent) / (2 * MaxTasks)
)

// Draft is a plan in the form that the planner returns (docs/reference/goals.md, Plan
// format).
type Draft struct {
	Analysis string      `json:"analysis"`
	Strategy string      `json:"strategy"`
	Roles    []Role      `json:"customRoles"`
	Tasks    []DraftTask `json:"tasks"`
	Risks    []string    `json:"risks"`
	Cents    int64       `json:"estimatedTotalCostCents"`
	Minutes  int64       `json:"estimatedTimeMinutes"`
}

// Role describes how some tasks of a plan are to be done. It grants nothing: the agent's
// own tools and policies apply.
type Role struct {
	Name         string `json:"name"`
	Description  string `json:"description"`
	SystemPrompt string `json:"systemPrompt"`
	Rationale    string `json:"rationale"`
}

// DraftTask is a task of a draft.
type DraftTask struct {
	Title        string `json:"title"`
	Description  string `json:"description"`
	Role         string `json:"agentRole"`
	Dependencies []int  `json:"dependencies"` // indexes in the list, from 0
	Cents        int64  `json:"estimatedCostCents"`
	Priority     int    `json:"priority"`
	TimeoutMS    int64  `json:"timeoutMs"`
}

// Total returns the estimated cost of the plan: its own estimate or the sum of its
// tasks', whichever is more.
func (d Draft) Total() api.Micros {
	var sum int64
	for _, t := range d.Tasks {
		sum += t.Cents
	}
	return api.Micros(max(sum, d.Cents)) * api.Cent
}

// Hash returns the SHA-256 of the plan's encoding, in hexadecimal.
func (d Draft) Hash() (string, error) {
	data, err := api.Encode(d)
	return fmt.Sprintf("%x", sha256.Sum256(data)), err
}

// Specs returns the draft's tasks for [Decompose].
func (d Draft) Specs() []Spec {
	out := make([]Spec, len(d.Tasks))
	for i, t := range d.Tasks {
		out[i] = Spec{
			Title: t.Title, Description: t.Description, Role: t.Role, Priority: min(t.Priority, maxPriority), Cost: api.Micros(t.Cents) * api.Cent,
			TimeoutMS: t.TimeoutMS, MaxRetries: defaultRetries,
		}
		for _, j := range t.Dependencies {
			out[i].Dependencies = append(out[i].Dependencies, fmt.Sprintf("#%d", j))
		}
	}
	return out
}

// One returns a plan of one task for a generalist. It is used for goals with few steps
// and when the planner fails.
func One(title, description string) Draft {
	return Draft{
		Analysis: "One task.", Strategy: "Do it at once.", Roles: []Role{}, Risks: []string{},
		Tasks: []DraftTask{{
			Title: title, Description: description, Role: "generalist", Dependencies: []int{}, Cents: int64(fallbackCost / api.Cent),
			Priority: defaultPriority, TimeoutMS: defaultTimeout,
		}},
		Cents: int64(fallbackCost / api.Cent), Minutes: defaultTimeout / 60_000,
	}
}

// ParsePlan reads a planner's answer: a JSON object, which text or a code fence may
// surround. Errors: Invalid with every fault of the plan.
func ParsePlan(answer string) (Draft, error) {
	text := strings.TrimSpace(answer)
	switch {
	case text == "":
		return Draft{}, api.Errorf(api.Invalid, "the planner's answer is empty")
	case len(text) > maxPlan:
		return Draft{}, api.Errorf(api.Invalid, "the plan has %d bytes, at most %d are taken", len(text), maxPlan)
	case !utf8.ValidString(text):
		return Draft{}, api.Errorf(api.Invalid, "the plan is not UTF-8")
	}
	if !json.Valid([]byte(text)) {
		text = object(text)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &fields); err != nil || fields == nil {
		return Draft{}, api.Errorf(api.Invalid, "the plan is not a JSON object")
	}
	var d Draft
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return Draft{}, api.Errorf(api.Invalid, "%s of the plan is a %s", wrong.Field, wrong.Value)
		}
		return Draft{}, api.Errorf(api.Invalid, "the plan is not a JSON object")
	}
	if faults := d.faults(fields); len(faults) > 0 {
		return Draft{}, &api.Error{Code: api.Invalid, Message: "the plan is not valid: " + strings.Join(faults, "; "), Details: faults}
	}
	d.trim()
	return d, nil
}

// object returns the JSON object within a text.
func object(text string) string {
	from, to := strings.IndexByte(text, '{'), strings.LastIndexByte(text, '}')
	if from < 0 || to < from {
		return ""
	}
	return text[from : to+1]
}

func (d *Draft) trim() {
	d.Analysis, d.Strategy = strings.TrimSpace(d.Analysis), strings.TrimSpace(d.Strategy)
	for i := range d.Tasks {
		t := &d.Tasks[i]
		t.Title, t.Description, t.Role = strings.TrimSpace(t.Title), strings.TrimSpace(t.Description), strings.TrimSpace(t.Role)
		if t.Dependencies == nil {
			t.Dependencies = []int{}
		}
	}
	if d.Roles == nil {
		d.Roles = []Role{}
	}
	if d.Risks == nil {
		d.Risks = []string{}
	}
}

// faults are the faults of a draft.
type faults []string

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

// words adds the fault of a text with at most limit bytes.
func (f *faults) words(what, s string, limit int) {
	switch {
	case strings.TrimSpace(s) == "":
		f.add("%s is missing or empty", what)
	case len(s) > limit:
		f.add("%s has %d bytes, at most %d are taken", what, len(s), limit)
	case strings.ContainsRune(s, 0):
		f.add("%s holds U+0000", what)
	}
}

// amount adds the fault of an estimate in cents.
func (f *faults) amount(what string, n int64) {
	if n < 0 || n > maxCents {
		f.add("%s is %d: it must be 0 to %d", what, n, maxCents)
	}
}

// faults returns the faults of a draft. fields are the fields of the object, to tell a
// missing list from an empty one.
func (d *Draft) faults(fields map[string]json.RawMessage) []string {
	var f faults
	f.words("analysis", d.Analysis, maxWords)
	f.words("strategy", d.Strategy, maxWords)
	f.amount("estimatedTotalCostCents", d.Cents)
	if d.Minutes < 0 {
		f.add("estimatedTimeMinutes is %d: it must be 0 or more", d.Minutes)
	}
	for i, r := range d.Risks {
		f.words(fmt.Sprintf("risks[%d]", i), r, maxWords)
	}
	if len(d.Roles) > maxRoles {
		f.add("customRoles has %d roles, at most %d are taken", len(d.Roles), maxRoles)
	}
	roles := map[string]bool{}
	for i, r := range d.Roles {
		name := strings.TrimSpace(r.Name)
		f.words(fmt.Sprintf("customRoles[%d].name", i), name, maxTitle)
		f.words(fmt.Sprintf("customRoles[%d].description", i), r.Description, maxWords)
		f.words(fmt.Sprintf("customRoles[%d].systemPrompt", i), r.SystemPrompt, maxWords)
		if roles[name] {
			f.add("customRoles[%d].name is a duplicate of another role: %q", i, name)
		}
		roles[name] = true
	}
	switch raw := fields["tasks"]; {
	case len(bytes.TrimSpace(raw)) == 0 || string(raw) == "null":
		f.add("tasks is missing")
	case len(d.Tasks) == 0:
		f.add("tasks is empty")
	case len(d.Tasks) > MaxTasks:
		f.add("tasks has %d tasks, at most %d are taken", len(d.Tasks), MaxTasks)
	default:
		d.taskFaults(&f)
	}
	return f
}

func (d *Draft) taskFaults(f *faults) {
	sound := true
	for i, t := range d.Tasks {
		at := fmt.Sprintf("tasks[%d].", i)
		f.words(at+"title", t.Title, maxTitle)
		f.words(at+"description", t.Description, maxWords)
		f.words(at+"agentRole", t.Role, maxTitle)
		f.amount(at+"estimatedCostCents", t.Cents)
		if t.Priority < 0 {
			f.add("%spriority is %d: it must be 0 or more", at, t.Priority)
		}
		if t.TimeoutMS <= 0 || t.TimeoutMS > maxTimeout {
			f.add("%stimeoutMs is %d: it must be 1 to %d", at, t.TimeoutMS, maxTimeout)
		}
		seen := map[int]bool{}
		for _, j := range t.Dependencies {
			switch {
			case j < 0 || j >= len(d.Tasks):
				f.add("%sdependencies has %d, which is out-of-range", at, j)
				sound = false
			case j == i:
				f.add("%sdependencies has the task itself", at)
				sound = false
			case seen[j]:
				f.add("%sdependencies has %d twice, a duplicate", at, j)
			}
			seen[j] = true
		}
	}
	if sound && Cyclic(d.Specs()) {
		f.add("tasks wait for each other in a cycle")
	}
}
