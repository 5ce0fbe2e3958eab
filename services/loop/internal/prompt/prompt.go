// Package prompt makes prompts and fits them into the context window of a model. Its
// functions are pure: their arguments determine every byte of the result, so that a
// prompt can be made again later from the same parts.
//
// The package must not do I/O, read a clock, or separate a tool call from its result,
// which models do not handle.
//
// A prompt begins with the same bytes as the previous prompt of the session, so that
// providers can answer from their caches. First are the layers that rarely change, in the
// only system message, then the conversation, to which turns are appended. Everything
// that changes with each turn is in the last message. The first turns of the conversation
// are left out in steps, see [step].
//
//	layers, memories, summary, turns ─▶ Fit ─▶ Prompt ─▶ Render ─▶ messages
//	                                     │
//	                                     └ stage 3 and up: Compact plans a summary;
//	                                       the caller makes it and calls Fit again
package prompt

import (
	"slices"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/token"
)

// Limits in tokens (docs/reference/context.md, Window).
const (
	DefaultWindow  = 128_000
	DefaultReserve = 4_000 // for the answer
	DefaultFlush   = 8_000 // a memory flush is due at this distance from the end of the window
)

// Whole is the least number of turns before the run that are shown in full
// (docs/reference/context.md, Shown turns). Listed is the number of turns before those
// that are shown as one line each.
const (
	Whole  = 20
	Listed = 40
)

// step is the number of turns by which the beginning of the shown turns moves. If it were
// one, each prompt of a long session would begin differently from the one before.
const step = 10

// Needed is the largest number of turns before the run that a prompt uses.
const Needed = Whole + step + Listed

// Tokens that a chat protocol adds to texts; the router counts the same.
const (
	messageTokens = 4
	toolTokens    = 8
)

// Counter counts the tokens of a text.
type Counter interface{ Count(text string) int64 }

// Turn is a turn with its position in its session, from 1.
type Turn struct {
	api.Turn
	Position int64
}

// Input holds everything that a prompt is made of.
type Input struct {
	Window  int64 // of the model, in tokens
	Reserve int64 // part of Window, for the answer
	Flush   int64 // see [DefaultFlush]
	Ratio   token.Ratio

	Layers  []Layer // in order; those that change with each turn are rendered after the conversation
	Memory  Layer   // memories recalled for this turn
	Todo    Layer   // the last part
	Summary string  // of the turns up to Through
	Through int64
	Turns   []Turn // after Through, oldest first, without a gap

	Run    string // id of the current run
	Asked  string // its input
	Words  string // input of this turn: the run's input, or what joined the run since the last turn
	Number int    // number of the turn in its run, from 1
	Tools  []api.Tool
	Status func(tool string) bool // see api/catalog
	// Warned reports that Words have a warning about repeated calls already.
	Warned bool
	// Flushing makes the prompt of a memory flush.
	Flushing bool
	// Hard leaves out every optional part.
	Hard bool
	// Memo caches rendered turns; nil: they are not cached.
	Memo *Memo
}

// After returns the input after a compaction through a position.
func (in Input) After(through int64, summary string) Input {
	in.Summary, in.Through = summary, through
	at := slices.IndexFunc(in.Turns, func(t Turn) bool { return t.Position > through })
	if at < 0 {
		at = len(in.Turns)
	}
	in.Turns = in.Turns[at:]
	return in
}

// Text is the text of a layer as it is in the prompt.
type Text struct {
	Name, Text string
	Last       bool // see [Layer]
}

// Parts are the parts of a prompt after all cuts. [Render] needs nothing else.
type Parts struct {
	Layers  []Text
	Memory  string
	Todo    string
	Summary string
	Hidden  int64  // number of turns that neither a part nor the summary contains
	Lines   []Turn // shown as one line each
	Turns   []Turn
	Bare    int    // number of the oldest of Turns, whose long results are left out
	Asked   string // the run's input; rendered before Turns if they do not contain its turn
	Joined  string // see [Joined]; rendered after Asked
	Words   string // rendered after Turns
	Warning []string
	Flush   bool

	told string // result of earlier, "" until it is computed
	memo *Memo
}

// maxUses is the largest number of parts of a prompt besides its layers.
const maxUses = 12

// Use is the number of tokens of one part.
type Use struct {
	Name   string
	Tokens int64
}

// Prompt is a prompt with its size.
type Prompt struct {
	Parts
	Messages []api.ChatMessage
	Counted  int64 // tokens before the ratio is applied
	Tokens   int64
	Raw      int64 // tokens without the cuts of the turns
	Capacity int64 // window without reserve
	Stage    Stage // stage of the cascade by Raw
	Uses     []Use
	// FlushDue reports that the agent should write its notes now, unless it has done so
	// since the last compaction.
	FlushDue bool
}

// Fits reports whether the prompt leaves the reserve free.
func (p Prompt) Fits() bool { return p.Tokens <= p.Capacity }

// Utilisation returns the used share of the capacity in hundredths of a per cent, at most
// 10,000 (docs/reference/context.md, Utilisation).
func (p Prompt) Utilisation() int64 { return min(10_000, share(p.Tokens, p.Capacity)) }

func share(tokens, capacity int64) int64 {
	if capacity <= 0 {
		return 10_000
	}
	return (tokens*10_000 + capacity/2) / capacity
}
