// Package skill keeps an agent's skills: folders skills/<name>/SKILL.md in its
// workspace, instructions for doing something that the agent is shown from then
// on. The files are the truth; a .skill.json beside one says where it came from
// and whether it is switched off. What a skill says is data from outside: it is
// defused, quoted and marked with its origin before a model sees it, and this
// package never executes any of it.
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

	"github.com/anima-run/anima/services/loop/internal/agentmd"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
)

// Bounds; spec-core-1 §2.6 where it has one.
const (
	MaxFile         = 64 << 10 // bytes of a SKILL.md
	MaxInstructions = 10_000   // characters; what is over is cut
	MaxDescription  = 500      // characters; what is over is cut
	MaxBlock        = 10_000   // characters of all skills in a prompt
	MaxSkills       = 100      // folders that are looked at

	folder    = "skills"
	file      = "SKILL.md"
	stateFile = ".skill.json"
)

// Skill is what a SKILL.md says.
type Skill struct {
	Name         string // 1 to 64 of A-Z, a-z, 0-9 and -; that of its folder
	Description  string // may be empty
	AutoActivate bool   // shown in every turn, not only when a trigger is found
	Bins         []string
	Env          []string
	Triggers     []string // found in an input whatever their case; none: only AutoActivate
	Instructions string   // may be empty
}

// Found is a skill of a workspace.
type Found struct {
	Skill           // with faults: its name alone
	Origin   string // where it came from, for people
	Disabled bool
	Missing  []string // requirements that are not met, for people
	Faults   []agentmd.Fault
}

// Active says whether the skill is shown in a turn with that input.
func (f Found) Active(input string) bool {
	if f.Disabled || len(f.Faults) > 0 || len(f.Missing) > 0 {
		return false
	}
	input = strings.ToLower(input)
	return f.AutoActivate || slices.ContainsFunc(f.Triggers, func(t string) bool { return strings.Contains(input, strings.ToLower(t)) })
}

// Status says in a few words whether the skill is shown, and why not.
func (f Found) Status() string {
	switch {
	case len(f.Faults) > 0:
		return "not readable"
	case f.Disabled:
		return "switched off"
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

// List returns the skills of a workspace by name, those with faults included. It
// returns no more than MaxSkills; what else is in the folder is left out. Errors
// are the machine's.
func List(workspace string) ([]Found, error) {
	all, _, err := load(workspace)
	for i := range all {
		all[i] = all[i].required(workspace)
	}
	return all, err
}

// load is List without the requirements, and the files that it depends on.
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

// required adds what the skill needs and the workspace does not have.
func (f Found) required(workspace string) Found {
	if len(f.Faults) == 0 {
		f.Missing = append(missing(workspace, f.Skill), f.Missing...)
	}
	return f
}

// read reads one skill's folder. What is wrong with it is a fault of the skill.
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
		f.Faults = []agentmd.Fault{{Line: 1, Message: err.Error()}}
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
		f.Disabled = true // The file says something, perhaps this.
		f.Missing = append(f.Missing, fmt.Sprintf("a %s that can be read", stateFile))
		return f
	}
	f.Disabled = known.Disabled
	if known.Origin != "" {
		f.Origin = known.Origin
	}
	return f
}

// missing lists the requirements that commands of the sandbox would not find.
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
