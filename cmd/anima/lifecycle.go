package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

type agentExplainCmd struct {
	Agent string `arg:"" help:"The agent." predictor:"agent"`
	Limit int    `help:"How many entries of its history." default:"20"`
}

// Help returns the text that --help prints below the usage.
func (agentExplainCmd) Help() string {
	return `Shows why the agent is in its state, since when, which events would change it, and
the history of its states with the reasons. The counters are of its main session.

Examples:
  anima agent explain lucky
  anima agent explain lucky --limit 100 -o json`
}

func (c agentExplainCmd) Run(ctx context.Context, a *app) error {
	req := api.ExplainAgent{Agent: c.Agent, Limit: c.Limit}
	return show(ctx, a, req, func(w io.Writer, v api.Explanation) { explain(w, v, time.Now()) })
}

func explain(w io.Writer, v api.Explanation, now time.Time) {
	why := plain(v.Agent.Reason)
	if why == "" {
		why = "no reason is recorded"
	}
	fmt.Fprintf(w, "%s is %s: %s\n", v.Agent.ID, v.Agent.State, line(why, 200))
	fmt.Fprintf(w, "since\t%s (%s)\n", when(v.Since), ago(v.Since, now))
	if v.Agent.SleepUntil != 0 {
		fmt.Fprintf(w, "until\t%s\n", when(v.Agent.SleepUntil))
	}
	fmt.Fprintf(w, "next\t%s\n", line(v.Next, 200))
	k := v.Counters
	pattern := ""
	if k.Pattern != "" {
		pattern = " (" + line(k.Pattern, 60) + ")"
	}
	fmt.Fprint(w, "\nCOUNTER\tIN A ROW\tIT SLEEPS AT\n")
	fmt.Fprintf(w, "turns that change nothing\t%d\t10\nturns with the same tools%s\t%d\t6\nturns that look at itself\t%d\t6\nruns that failed\t%d\t5\ngoals refused\t%d\t1, longer each time\n",
		k.Idle, pattern, k.Repeated, k.Maintenance, k.Errors, k.Blocked)
	if k.Why != "" {
		fmt.Fprintf(w, "last sleep\t%s\n", line(k.Why, 100))
	}
	fmt.Fprint(w, "\nTIME\tFROM\tTO\tWHY\n")
	for _, h := range v.History {
		from := string(h.Previous)
		if from == "" {
			from = "-"
		}
		until := ""
		if h.SleepUntil != 0 {
			until = " (until " + when(h.SleepUntil) + ")"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s%s\n", when(h.At), from, h.State, line(h.Reason, 80), until)
	}
}

// ago formats the time since a Unix time in microseconds.
func ago(micros int64, now time.Time) string {
	return now.Sub(time.UnixMicro(micros)).Round(time.Second).String() + " ago"
}

type agentSleepCmd struct {
	Agent  string        `arg:"" help:"The agent." predictor:"agent"`
	For    time.Duration `help:"How long: 90s, 1h; at most 24h." xor:"until" placeholder:"DURATION"`
	Until  string        `help:"Until when: 2026-11-21T08:00:00Z, or 08:00 on this machine's clock, today or tomorrow." xor:"until" placeholder:"TIME"`
	Reason string        `help:"The reason that the agent is told." default:"your creator lets you sleep"`
}

// Help returns the text that --help prints below the usage.
func (agentSleepCmd) Help() string {
	return `The run in progress on its main session is cancelled. Without a time the agent sleeps
until the next message, wake or alarm.

Examples:
  anima agent sleep lucky
  anima agent sleep lucky --for 1h --reason "too loud"
  anima agent sleep lucky --until 08:00`
}

func (c agentSleepCmd) Run(ctx context.Context, a *app) error {
	until, err := c.time(time.Now())
	if err != nil {
		return err
	}
	return show(ctx, a, api.SleepAgent{Agent: c.Agent, Until: until, Reason: c.Reason}, func(w io.Writer, v api.Agent) {
		if v.SleepUntil == 0 {
			fmt.Fprintf(w, "%s is %s until the next message, wake or alarm\n", v.ID, v.State)
			return
		}
		fmt.Fprintf(w, "%s is %s until %s\n", v.ID, v.State, when(v.SleepUntil))
	})
}

// time returns the end of the sleep in Unix microseconds; 0 means until the next wake.
func (c agentSleepCmd) time(now time.Time) (int64, error) {
	var end time.Time
	switch {
	case c.Until != "":
		var err error
		if end, err = clock(c.Until, now); err != nil {
			return 0, err
		}
	case c.For != 0:
		end = now.Add(c.For)
	default:
		return 0, nil
	}
	if !end.After(now) {
		return 0, &api.Error{Code: api.Invalid, Message: "the time is in the past", Next: "name a time in the future, or none"}
	}
	return end.UnixMicro(), nil
}

// clock parses an RFC 3339 time, or the next occurrence of an hour and minute in now's
// location.
func clock(s string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return t, nil
	}
	h, err := time.Parse("15:04", s)
	if err != nil {
		return time.Time{}, &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%q is not a time", plain(s)), Next: "write 2026-11-21T08:00:00Z, or 08:00"}
	}
	t := time.Date(now.Year(), now.Month(), now.Day(), h.Hour(), h.Minute(), 0, 0, now.Location())
	if !t.After(now) {
		t = t.AddDate(0, 0, 1)
	}
	return t, nil
}

type runCmd struct {
	Get runGetCmd `cmd:"" help:"Show a run: its progress, or its outcome."`
}

type runGetCmd struct {
	ID      string `arg:"" name:"run" help:"The run."`
	Session string `help:"Its session; needed while the run waits." placeholder:"SESSION"`
}

// Help returns the text that --help prints below the usage.
func (runGetCmd) Help() string {
	return `Every accepted message has one outcome: consumed (it was run), merged (into another
run), dropped or expired.

Examples:
  anima run get 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e --session lucky-main`
}

func (c runGetCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.GetRun{Run: c.ID, Session: c.Session}, runText)
}

func runText(w io.Writer, v api.RunState) {
	fmt.Fprintf(w, "run\t%s\nsession\t%s\nagent\t%s\nkind\t%s\nstatus\t%s\naccepted\t%s\n", v.Run, v.Session, v.Agent, v.Kind, v.Status, when(v.AcceptedAt))
	if v.Cancelled {
		fmt.Fprintln(w, "cancelled\tyes")
	}
	if v.Outcome != "" {
		fate := string(v.Outcome)
		if v.Into != "" {
			fate += " into run " + v.Into
		}
		fmt.Fprintf(w, "fate\t%s\n", fate)
	}
	if v.Status != api.RunEnded {
		return
	}
	end := "well"
	if !v.Success {
		end = line(fmt.Sprintf("%s %s: %s", v.Code, v.Reason, v.Error), 200)
	}
	fmt.Fprintf(w, "ended\t%s, %s\nturns\t%d\ncost\t%s\n", when(v.EndedAt), end, v.Turns, v.Cost)
	if v.Response != "" {
		fmt.Fprintf(w, "response\t%s\n", indent(v.Response))
	}
}

type sessionCancelCmd struct {
	ID      string `arg:"" name:"run" help:"The run."`
	Session string `help:"Its session; needed while the run waits." placeholder:"SESSION"`
	Reason  string `help:"The reason." default:"your creator cancelled it"`
}

// Help returns the text that --help prints below the usage.
func (sessionCancelCmd) Help() string {
	return `A run that waits is dropped. A run in progress calls no further tool, its commands
are stopped, and it is not resumed. A run that has ended does not change.

Examples:
  anima session cancel 0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e --session lucky-main`
}

func (c sessionCancelCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.CancelRun{Run: c.ID, Session: c.Session, Reason: c.Reason}, runText)
}

type sessionResetCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
}

// Help returns the text that --help prints below the usage.
func (sessionResetCmd) Help() string {
	return `Earlier turns are no longer sent to a model. They stay in the transcript, and the
agent keeps its memories and files. A busy session is not reset.

Examples:
  anima session reset lucky-main`
}

func (c sessionResetCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.ResetSession{Session: c.Session}, func(w io.Writer, v api.Session) {
		fmt.Fprintf(w, "session %s of %s is reset; %d turns stay in its transcript\n", v.ID, v.Agent, v.Reset)
	})
}

type sessionTerminateCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
	Reason  string `help:"The reason." default:"your creator ended it"`
}

// Help returns the text that --help prints below the usage.
func (sessionTerminateCmd) Help() string {
	return `The run in progress is cancelled, waiting messages are dropped, and the session
accepts no further messages. Its transcript stays. If it is the main session of an
agent, the agent gets a new one: anima agent get shows it.

Examples:
  anima session terminate lucky-0199c1a2-7b1e-7c55-9d3a-2f6a1b0c4d5e`
}

func (c sessionTerminateCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.TerminateSession{Session: c.Session, Reason: c.Reason}, func(w io.Writer, v api.Session) {
		fmt.Fprintf(w, "session %s of %s is terminated since %s: %s\n", v.ID, v.Agent, when(v.Terminated), line(v.Reason, 200))
	})
}
