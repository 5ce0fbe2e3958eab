package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

type sessionGetCmd struct {
	Session string `arg:"" help:"The session." predictor:"session"`
}

// sessionView is a session with its work in progress. Owner, next run and last step are
// read one after the other without a lock, so they may belong to different times.
type sessionView struct {
	api.Session

	Lock *api.Lock    `json:"lock,omitempty"` // owner and expiry; nil: no replica runs the session
	Next *api.Run     `json:"next,omitempty"` // oldest message that is not done, including the one in progress
	Step *journalStep `json:"step,omitempty"` // nil: none within the retention of the journal
}

// journalStep is a step of a session's journal without its content.
type journalStep struct {
	Run  string `json:"runId"`
	Turn int    `json:"turn"`
	Kind string `json:"kind"`
	At   int64  `json:"at"` // Unix microseconds
}

func (c sessionGetCmd) Run(ctx context.Context, a *app) error {
	b, err := a.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var v sessionView
	if v.Session, err = bus.Call[api.Session](ctx, b, api.GetSession{Session: c.Session}); err != nil {
		return err
	}
	if err := v.look(ctx, b); err != nil {
		return err
	}
	return a.print(v, func(w io.Writer) { v.text(w, time.Now()) })
}

// look fills in the fields that it reads from the bus without a request to a service.
func (v *sessionView) look(ctx context.Context, b *bus.Bus) error {
	now := time.Now().UnixMicro()
	var last api.Journal
	m, err := b.Last(ctx, api.Journal{Session: v.ID}.Subject())
	exists, err := found(m, err, &last)
	if err != nil {
		return err
	}
	if exists {
		v.Step = &journalStep{last.Run, last.Turn, last.Kind, m.At.UnixMicro()}
	}
	if err := v.owner(ctx, b, last, now); err != nil {
		return err
	}
	var next api.Run
	m, err = b.Next(ctx, api.Run{Session: v.ID}.Subject(), 1)
	if exists, err = found(m, err, &next); exists {
		v.Next = &next
	}
	return err
}

// found decodes a message that was read into v, and reports whether it exists.
func found(m bus.Stored, err error, v any) (bool, error) {
	if api.CodeOf(err) == api.NotFound {
		return false, nil
	}
	if err == nil {
		err = api.Decode(m.Data, v)
	}
	return err == nil, err
}

// owner fills in the owner of the session, from the last entry of its journal and from
// the lock that may extend its lease.
func (v *sessionView) owner(ctx context.Context, b *bus.Bus, last api.Journal, now int64) error {
	held, open := last.Held("", now)
	if held {
		v.Lock = &api.Lock{Run: last.Run, Owner: last.Owner, Epoch: last.Epoch, Expires: last.Expires}
	}
	if !open {
		return nil
	}
	locks, err := bus.OpenBucket[api.Lock](ctx, b)
	if err != nil {
		return err
	}
	e, err := locks.Get(ctx, api.LockKey(v.ID))
	if api.CodeOf(err) == api.NotFound {
		return nil
	}
	if err == nil && e.Value.Expires > now { // an expired lock has not been deleted yet
		v.Lock = &e.Value
	}
	return err
}

func (v *sessionView) text(w io.Writer, now time.Time) {
	fmt.Fprintf(w, "session\t%s\nagent\t%s\nmessages\t%d\nturns\t%d\ncost\t%s\n", v.ID, v.Agent, v.Messages, v.Turns, v.Cost)
	owner, next, step := "no replica", "nothing", "-"
	if v.Lock != nil {
		owner = fmt.Sprintf("replica %s, run %s", plain(v.Lock.Owner), v.Lock.Run)
	}
	if v.Next != nil {
		next = fmt.Sprintf("run %s, a %s of %s", v.Next.Run, v.Next.Kind, ago(v.Next.AcceptedAt, now))
	}
	if v.Step != nil {
		step = fmt.Sprintf("%s, turn %d of run %s, %s", plain(v.Step.Kind), v.Step.Turn, v.Step.Run, ago(v.Step.At, now))
	}
	fmt.Fprintf(w, "run by\t%s\nnext\t%s\nlast step\t%s\n", owner, next, step)
	if v.Terminated != 0 {
		fmt.Fprintf(w, "terminated\t%s: %s\n", when(v.Terminated), line(v.Reason, 100))
	}
}
