package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// paging are the flags of a list that goes on.
type paging struct {
	After string `help:"Only what the list has behind this: what it said last." placeholder:"PLACE"`
	Limit int    `help:"How many, at most 1000." default:"50"`
}

// more says that a list goes on, and how to see the rest. With -o json, more and next
// say so.
func more(w io.Writer, p api.Page) {
	switch {
	case p.More && p.Next != "":
		fmt.Fprintf(w, "… more: --after %s\n", p.Next)
	case p.More:
		fmt.Fprintf(w, "… more: --limit N, at most %d\n", api.MaxPage)
	}
}

// watching is the flag of a command that can show its answer again and again.
type watching struct {
	Watch bool `short:"w" help:"Show it again whenever it has changed, until interrupted."`
}

// watchEvery is how often a watched answer is asked for.
const watchEvery = 2 * time.Second

// show runs a command once, or again and again: then it prints what differs from the
// output before, whole.
func (c watching) show(ctx context.Context, a *app, once func(context.Context, *app) error) error {
	if !c.Watch {
		return once(ctx, a)
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for last := ""; ; {
		var out bytes.Buffer
		this := *a
		this.Out = &out
		if err := once(ctx, &this); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // interrupted
			}
			return err
		}
		if text := out.String(); text != last {
			if _, err := a.Out.Write(out.Bytes()); err != nil {
				return err
			}
			last = text
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// or is a text, or a dash for none.
func or(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
