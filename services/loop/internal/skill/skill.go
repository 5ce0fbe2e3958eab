// Package skill manages an agent's skills: folders skills/<name>/SKILL.md in its
// workspace with instructions for a task, which are shown in the agent's prompts. The
// files are authoritative; a .skill.json next to a SKILL.md has its origin and whether it
// is disabled. The text of a skill is external data: it is defused, quoted and marked
// with its origin before a model reads it. The package must not execute any of it.
package skill

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/anima-run/anima/services/loop/internal/frontmatter"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
)

// Bounds (docs/reference/loop.md, Skills).
const (
	MaxFile         = 64 << 10 // bytes of a SKILL.md
	MaxInstructions = 10_000   // characters; the rest is cut
	MaxDescription  = 500      // characters; the rest is cut
	MaxBlock        = 10_000   // characters of all skills in a prompt
	MaxSkills       = 100      // folders that are read

	folder    = "skills"
	file      = "SKILL.md"
	stateFile = ".skill.json"
)

// Skill is the content of a SKILL.md.
type Skill struct {
	Name         string // 1 to 64 of A-Z, a-z, 0-9 and -; the name of its folder
	Description  string // may be empty
	AutoActivate bool   // shown in every turn, not only after a trigger
	Bins         []string
	Env          []string
	Triggers     []string // texts of an input, in any case, that activate the skill; none: only AutoActivate
	Instructions string   // may be empty
}

// Found is a skill in a workspace.
type Found struct {
	Skill           // with faults: only its name
	Origin   string // description of its origin
	Disabled bool
	Missing  []string // descriptions of the requirements that are not met
	Faults   []frontmatter.Fault
}

// Active reports whether the skill is shown in a turn with that input.
func (f Found) Active(input string) bool {
	if f.Disabled || len(f.Faults) > 0 || len(f.Missing) > 0 {
		return false
	}
	input = strings.ToLower(input)
	return f.AutoActivate || slices.ContainsFunc(f.Triggers, func(t string) bool { return strings.Contains(input, strings.ToLower(t)) })
}

// Status describes whether the skill is shown, and the reason if not.
func (f Found) Status() string {
	switch {
	case len(f.Faults) > 0:
		return "not readable"
	case f.Disabled:
		return "disabled"
	case len(f.Missing) > 0:
		return "needs " + strings.Join(f.Missing, ", ")
	case f.AutoActivate:
		return "active"
	case len(f.Triggers) > 0:
		return "active when an input has one of: " + strings.Join(f.Triggers, ", ")
	}
	return "never active: it has neither auto-activate nor triggers"
}

// state is the content of a skill's .skill.json.
type state struct {
	Origin   string `json:"origin,omitempty"`
	Disabled bool   `json:"disabled,omitempty"`
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

func checkName(name string) error {
	if !namePattern.MatchString(name) {
		return errors.New("a skill's name has 1 to 64 letters, digits and -")
	}
	return nil
}

// List returns the skills of a workspace by name, including those with faults, at most
// MaxSkills. Other files in the folder are left out. Errors are those of the file system.
func List(workspace string) ([]Found, error) {
	all, _, err := load(workspace)
	for i := range all {
		all[i] = all[i].required(workspace)
	}
	return all, err
}

// load is List without the requirements. made has the files that the result depends on.
func load(workspace string) (all []Found, made sandbox.Made[struct{}], err error) {
	names, _, err := sandbox.ReadDir(workspace, folder, MaxSkills)
	if errors.Is(err, fs.ErrNotExist) {
		made.Absent = []string{folder}
		return nil, made, nil
	}
	if err != nil {
		return nil, made, err
	}
	made.Paths = []string{folder}
	for _, name := range names {
		name, dir := strings.CutSuffix(name, "/")
		if dir && checkName(name) == nil {
			all = append(all, read(workspace, name, &made))
		}
	}
	return all, made, nil
}

// required adds the requirements of the skill that the workspace does not meet.
func (f Found) required(workspace string) Found {
	if len(f.Faults) == 0 {
		f.Missing = append(missing(workspace, f.Skill), f.Missing...)
	}
	return f
}

// read reads a skill's folder. Errors become faults of the skill.
func read(workspace, name string, made *sandbox.Made[struct{}]) Found {
	f := Found{Skill: Skill{Name: name}, Origin: "a file of the workspace"}
	at := path.Join(folder, name)
	get := func(file string, limit int64) ([]byte, error) {
		file = path.Join(at, file)
		data, err := sandbox.ReadFile(workspace, file, limit)
		if errors.Is(err, fs.ErrNotExist) {
			made.Absent = append(made.Absent, file)
		} else {
			made.Paths = append(made.Paths, file)
		}
		return data, err
	}
	made.Paths = append(made.Paths, at)
	src, err := get(file, MaxFile)
	if err != nil {
		f.Faults = []frontmatter.Fault{{Line: 1, Message: err.Error()}}
		return f
	}
	s, faults := Parse(src, name)
	if f.Faults = faults; len(faults) == 0 {
		f.Skill = s
	}
	st, err := get(stateFile, 4<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return f
	}
	var known state
	if err == nil {
		err = json.Unmarshal(st, &known)
	}
	if err != nil {
		f.Disabled = true // it may have disabled the skill
		f.Missing = append(f.Missing, fmt.Sprintf("a %s that can be read", stateFile))
		return f
	}
	f.Disabled = known.Disabled
	if known.Origin != "" {
		f.Origin = known.Origin
	}
	return f
}

// missing returns the requirements that commands in the sandbox would not find.
func missing(workspace string, s Skill) []string {
	var all []string
	if len(s.Bins)+len(s.Env) == 0 {
		return nil
	}
	for _, bin := range s.Bins {
		if !sandbox.Finds(bin) {
			all = append(all, "the program "+bin)
		}
	}
	set := map[string]bool{}
	for _, v := range sandbox.Environment(workspace) {
		name, _, _ := strings.Cut(v, "=")
		set[name] = true
	}
	for _, name := range s.Env {
		if !set[name] {
			all = append(all, "the variable "+name)
		}
	}
	return all
}
