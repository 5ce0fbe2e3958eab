package goal

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/anima-run/anima/pkg/api"
)

// Message is a message to be published with a change.
type Message struct {
	ID string
	M  api.Message
}

// Effects are the consequences of a change, to be committed with it.
type Effects struct {
	Messages []Message
	Sessions [][2]string // session and its agent, to be created if they do not exist
	Cancels  []Cancel    // runs that became strays
}

// Cancel is a run to be cancelled.
type Cancel struct{ Run, Session, Reason string }

// cancelOf returns the cancellation of a stray's run.
func (s *State) cancelOf(a Attempt) Cancel {
	t := s.task(a.Task)
	return Cancel{a.Run, Session(*t), "the attempt at task " + t.ID + " is over: " + t.Error}
}

// Apply applies a change to before, which it does not modify, and returns the new state
// and its effects. If change returns an error, nothing is to be stored. A change that
// changes nothing has no effects and does not increase Seq.
func Apply(before State, at int64, change func(*State) error) (State, Effects, error) {
	s := before.clone()
	if err := change(&s); err != nil {
		return before, Effects{}, err
	}
	s.settle(at)
	if reflect.DeepEqual(before, s) {
		return before, Effects{}, nil
	}
	s.Seq, s.UpdatedAt = before.Seq+1, at
	var out Effects
	add := func(id string, m api.Message) { out.Messages = append(out.Messages, Message{id, m}) }
	for _, t := range s.Tasks {
		was := before.task(t.ID)
		if was != nil && was.Status == t.Status && was.Attempt == t.Attempt {
			continue
		}
		changed := api.TaskChanged{
			Task: t.ID, Goal: s.ID, Agent: s.Agent, Title: t.Title, Status: t.Status, Attempt: t.Attempt, Run: t.Lease, Error: t.Error,
			Seq: s.Seq, At: at,
		}
		if was != nil {
			changed.Previous = was.Status
		}
		add(fmt.Sprintf("task_changed/%s/%d", t.ID, s.Seq), changed)
		switch t.Status {
		case api.TaskAssigned:
			add(fmt.Sprintf("task/%s/%d", t.ID, t.Attempt), api.DoTask{Goal: s.ID, Task: t.ID, Agent: t.Assignee, Attempt: t.Attempt})
		case api.TaskRunning:
			out.Sessions = append(out.Sessions, [2]string{Session(t), t.Assignee})
			add("run/"+t.Lease, api.Run{
				Run: t.Lease, Agent: t.Assignee, Session: Session(t), Kind: api.RunTask, Content: s.brief(&t),
				By: api.Lowest(api.Principal{Kind: api.Self}, s.By), Cause: t.ID, AcceptedAt: at, CostCap: s.left(&t),
			})
		case api.TaskPending, api.TaskBlocked, api.TaskCompleted, api.TaskFailed, api.TaskCancelled:
		}
	}
	for _, a := range s.Strays() {
		if !slices.Contains(before.Strays(), a) {
			out.Cancels = append(out.Cancels, s.cancelOf(a))
		}
	}
	was, is := before.Phase(), s.Phase()
	if was != is || len(s.Strays()) > 0 || was == api.PhaseReview && before.Reason != s.Reason {
		add(fmt.Sprintf("goal_changed/%s/%d", s.ID, s.Seq), api.GoalChanged{
			Goal: s.ID, Agent: s.Agent, Title: s.Title, Status: s.Status, Phase: is, Previous: was, Reason: s.Reason, Version: s.Version,
			Seq: s.Seq, At: at,
		})
	}
	return s, out, nil
}

// Created returns the effects of creating a goal.
func Created(s State) Effects {
	return Effects{Messages: []Message{{"goal_created/" + s.ID, api.GoalCreated{
		Goal: s.ID, Agent: s.Agent, Title: s.Title, By: s.By, At: s.CreatedAt,
	}}}}
}
