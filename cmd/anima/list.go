package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/anima-run/anima/pkg/api"
)

// paging holds the flags of a list that has pages.
type paging struct {
	After string `help:"Continue the list after this place, which the previous page printed at its end." placeholder:"PLACE"`
	Limit int    `help:"How many, at most 1000." default:"50"`
}

// more prints that the list has more entries and how to request them. With -o json, the
// fields more and next have that.
func more(w io.Writer, p api.Page) {
	switch {
	case p.More && p.Next != "":
		fmt.Fprintf(w, "… more: --after %s\n", p.Next)
	case p.More:
		fmt.Fprintf(w, "… more: --limit N, at most %d\n", api.MaxPage)
	}
}

// watching holds the flag of a command that can repeat its output.
type watching struct {
	Watch bool `short:"w" help:"Print the output again after each change, until interrupted."`
}

// watchEvery is the interval between two requests of a watched output.
const watchEvery = 2 * time.Second

// show runs a command once, or with --watch repeatedly; then it prints the whole output
// each time that it differs from the previous one.
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

// or returns the text, or "-" if it is empty.
func or(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
