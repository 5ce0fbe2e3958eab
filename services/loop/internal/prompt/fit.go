package prompt

import (
	"slices"
)

// Fit makes the prompt of an input. It applies stages 1 and 2 of the cascade; from stage
// 3 on turns must be summarised first, see [Compact]. The result may not fit; then the
// caller must refuse it.
func Fit(c Counter, in Input) Prompt {
	p := Measure(c, in)
	p.Messages = Render(p.Parts)
	return p
}

// Measure is [Fit] without the messages.
func Measure(c Counter, in Input) Prompt {
	if in.Memo == nil {
		in.Memo = NewMemo() // so that no turn is rendered and counted twice
	}
	p := Prompt{Capacity: max(0, in.Window-in.Reserve)}
	p.memo = in.Memo
	p.Layers = layers(c, in, p.Capacity)
	if !in.Hard {
		p.Memory = cutLayer(c, in.Memory, 1)
	}
	p.Summary = in.Summary
	if in.Hard {
		p.Summary = within(c, p.Summary, hardSummary)
	}
	p.Lines, p.Turns = shown(in)
	if p.Flush = in.Flushing; !p.Flush {
		p.Todo = cutLayer(c, in.Todo, 1)
		if !in.Warned {
			p.Warning = repeated(p.Turns)
		}
		p.Words = in.Words
	}
	p.place(in)

	p.count(c, in)
	p.Raw = p.Tokens
	p.Stage = StageOf(p.Raw, p.Capacity)
	p.FlushDue = p.Raw > min(in.Window-in.Flush, p.Capacity*int64(summarise)/10_000)
	if in.Hard {
		p.Stage = max(p.Stage, Truncate)
	}
	whole, full := keepWhole, keepResults
	if in.Hard {
		whole, full = never, never
	}
	if p.Stage >= Lines {
		p.list(in, whole)
	}
	if p.Stage >= Results {
		if p.Bare = max(0, len(p.Turns)-full); !in.Hard {
			p.Bare = aligned(p.Turns, p.Bare, group)
		}
		p.count(c, in)
	}
	return p
}

// shown returns the turns that are shown as a line and those that are shown in full.
func shown(in Input) (lines, whole []Turn) {
	from := len(in.Turns)
	for n := 0; from > 0; from-- {
		if in.Turns[from-1].Run != in.Run {
			if n++; n > Whole {
				break
			}
		}
	}
	from = aligned(in.Turns, from, step)
	lines = in.Turns[max(0, from-Listed):from:from]
	recent := in.Turns[from:]
	if from == 0 || in.Status == nil {
		return lines, slices.Clip(recent)
	}
	idle := func(i int) bool { // its results are outdated, and it suggests further status calls
		return i < Whole-step && recent[i].Run != in.Run && statusOnly(&recent[i].Turn, in.Status)
	}
	for i := range recent {
		if !idle(i) {
			continue
		}
		whole = append(make([]Turn, 0, len(recent)), recent[:i]...)
		for ; i < len(recent); i++ {
			if !idle(i) {
				whole = append(whole, recent[i])
			}
		}
		return lines, whole
	}
	return lines, slices.Clip(recent)
}

// aligned returns the largest n or less such that turns[n-1] ends a step of by positions;
// 0 if there is none.
func aligned(turns []Turn, n int, by int64) int {
	for ; n > 0; n-- {
		if turns[n-1].Position%by == 0 {
			return n
		}
	}
	return 0
}

// list moves all turns but the last keep, and those of the same step, to the lines.
func (p *Prompt) list(in Input, keep int) {
	n := len(p.Turns) - keep
	if !in.Hard {
		n = aligned(p.Turns, n, group)
	}
	if n <= 0 {
		return
	}
	p.Lines = append(slices.Clone(p.Lines), p.Turns[:n]...)
	if in.Hard {
		p.Lines = p.Lines[max(0, len(p.Lines)-hardLines):]
	}
	p.Turns = p.Turns[n:]
	p.place(in)
}

// place sets the parts before the shown turns. The run's input is always in the prompt,
// whatever the length of the run, and so is what joined the run in turns that are not
// summarised.
func (p *Prompt) place(in Input) {
	p.Asked, p.Hidden = "", 0
	switch {
	case len(p.Lines) > 0:
		p.Hidden = p.Lines[0].Position - in.Through - 1
	case len(p.Turns) > 0:
		p.Hidden = p.Turns[0].Position - in.Through - 1
	}
	began := slices.ContainsFunc(p.Turns, func(t Turn) bool { return t.Number == 1 && t.Run == in.Run })
	if in.Number > 1 && !began {
		p.Asked = in.Asked
	}
	p.Joined = Joined(p.Lines, in.Run)
}

// count adds up the tokens of the parts.
func (p *Prompt) count(c Counter, in Input) {
	p.Uses, p.Counted = make([]Use, 0, len(p.Layers)+maxUses), 0
	add := func(name string, n int64) {
		if n > 0 {
			p.Uses = append(p.Uses, Use{name, n})
			p.Counted += n
		}
	}
	text := func(name, s string) {
		if s != "" {
			add(name, messageTokens+c.Count(s))
		}
	}
	add("system", messageTokens)
	for _, l := range p.Layers {
		add(l.Name, c.Count(l.Text)+1) // the blank line between two layers
	}
	p.told = ""
	p.told = earlier(p.Parts)
	text("summary", p.told)
	text("asked", p.Asked)
	text("joined", p.Joined)
	var turns int64
	for i := range p.Turns {
		turns += p.memo.count(c, &p.Turns[i].Turn, i < p.Bare)
	}
	add("turns", turns)
	text("input", p.Words)
	text("flush", flush(p.Flush))
	if noteworthy(p.Parts) {
		for _, note := range []Text{{Name: "memory", Text: p.Memory}, {Name: "warning", Text: warning(p.Warning)}, {Name: "todo", Text: p.Todo}} {
			if note.Text != "" {
				add(note.Name, c.Count(note.Text)+1)
			}
		}
		add("frame", messageTokens+c.Count(noteHead+noteEnd))
	}
	add("tools", p.memo.offered(c, in.Tools))
	p.Tokens = in.Ratio.Of(p.Counted)
}
