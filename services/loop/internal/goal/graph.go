package goal

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// Spec is a task of a plan. A reference to another task is its index from 0 ("2" or
// "#2"), "task-N" counted from 1, or its title if that is unique.
type Spec struct {
	Title, Description, Role string
	Parent                   string // a reference; "": none
	Dependencies             []string
	Priority                 int
	Cost                     api.Micros
	TimeoutMS                int64 // of an attempt; 0: 5 minutes
	MaxRetries               int   // after the first attempt
}

// resolve returns the index of the task that a reference names, -1 if there is none.
func resolve(specs []Spec, ref string) int {
	ref = strings.TrimSpace(ref)
	if n, err := strconv.Atoi(strings.TrimPrefix(ref, "#")); err == nil {
		if n >= 0 && n < len(specs) {
			return n
		}
		return -1
	}
	if after, ok := strings.CutPrefix(strings.ToLower(ref), "task-"); ok {
		if n, err := strconv.Atoi(after); err == nil {
			if n >= 1 && n <= len(specs) {
				return n - 1
			}
			return -1
		}
	}
	found := -1
	for i, s := range specs {
		if strings.TrimSpace(s.Title) != ref {
			continue
		}
		if found >= 0 {
			return -1 // an ambiguous title names no task
		}
		found = i
	}
	return found
}

// Cyclic reports whether dependencies and parents form a cycle. References that name no
// task are ignored.
func Cyclic(specs []Spec) bool {
	const white, grey, black = 0, 1, 2
	colour := make([]int, len(specs))
	var visit func(int) bool
	visit = func(i int) bool {
		switch colour[i] {
		case grey:
			return true
		case black:
			return false
		}
		colour[i] = grey
		for _, ref := range append(slices.Clone(specs[i].Dependencies), specs[i].Parent) {
			if ref == "" {
				continue
			}
			if j := resolve(specs, ref); j >= 0 && visit(j) {
				return true
			}
		}
		colour[i] = black
		return false
	}
	for i := range specs {
		if visit(i) {
			return true
		}
	}
	return false
}

// Decompose creates the tasks of a version of a plan. Errors: Invalid with every fault in
// Details.
func Decompose(goal, agent string, version int, specs []Spec, at int64) ([]Task, error) {
	var faults []string
	fault := func(i int, format string, args ...any) {
		faults = append(faults, fmt.Sprintf("task %d: ", i+1)+fmt.Sprintf(format, args...))
	}
	tasks := make([]Task, len(specs))
	for i, s := range specs {
		t := Task{
			ID: taskID(goal, version, i+1), Version: version, Number: i + 1, Title: strings.TrimSpace(s.Title),
			Description: strings.TrimSpace(s.Description), Status: api.TaskPending, Role: strings.TrimSpace(s.Role), Assignee: agent,
			Priority: s.Priority, Estimate: s.Cost, TimeoutMS: s.TimeoutMS, MaxRetries: s.MaxRetries, CreatedAt: at,
		}
		if t.Title == "" || t.Description == "" {
			fault(i, "the title or the description is empty")
		}
		if t.Priority < 0 || t.Priority > maxPriority {
			fault(i, "priority %d is not within 0 to %d", t.Priority, maxPriority)
		}
		if t.Role == "" {
			t.Role = "generalist"
		}
		if t.TimeoutMS <= 0 {
			t.TimeoutMS = defaultTimeout
		}
		for _, ref := range s.Dependencies {
			j := resolve(specs, ref)
			switch {
			case j < 0:
				fault(i, "it depends on %q, which is no task of the plan", ref)
			case j == i:
				fault(i, "it depends on itself")
			case !slices.Contains(t.Dependencies, taskID(goal, version, j+1)):
				t.Dependencies = append(t.Dependencies, taskID(goal, version, j+1))
			}
		}
		if s.Parent != "" {
			switch j := resolve(specs, s.Parent); {
			case j < 0:
				fault(i, "its parent %q is no task of the plan", s.Parent)
			case j == i:
				fault(i, "it is the parent of itself")
			default:
				t.Parent = taskID(goal, version, j+1)
			}
		}
		if len(t.Dependencies) > 0 {
			t.Status = api.TaskBlocked
		}
		tasks[i] = t
	}
	if len(specs) == 0 {
		faults = append(faults, "the plan has no task")
	}
	if Cyclic(specs) {
		faults = append(faults, "the tasks wait for each other in a cycle")
	}
	if len(faults) > 0 {
		return nil, &api.Error{Code: api.Invalid, Message: "the tasks are not a graph: " + faults[0], Details: faults}
	}
	return tasks, nil
}

// ready returns the pending tasks of the last plan whose dependencies are completed, by
// priority and then by number.
func (s *State) ready() []*Task {
	var out []*Task
	for _, t := range s.current() {
		if t.Status == api.TaskPending && s.unblocked(t) {
			out = append(out, t)
		}
	}
	slices.SortStableFunc(out, func(a, b *Task) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Number, b.Number))
	})
	return out
}

// unblocked reports whether all dependencies of a task are completed.
func (s *State) unblocked(t *Task) bool {
	for _, id := range t.Dependencies {
		if d := s.task(id); d == nil || d.Status != api.TaskCompleted {
			return false
		}
	}
	return true
}

// open returns the status of a task that waits: pending or blocked.
func (s *State) open(t *Task) api.TaskStatus {
	if s.unblocked(t) {
		return api.TaskPending
	}
	return api.TaskBlocked
}
