// Package draw renders traces as SVG waterfalls. Text can be selected, the pictures are
// readable on light and dark pages, and small enough for a repository. The same trace
// gives the same bytes. It must not access a Jaeger.
package draw

import (
	"fmt"
	"html"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/tools/trace/query"
)

// Options are the options of a picture.
type Options struct {
	Rows int // maximum number of rows; the deepest spans are omitted first. 0 means no limit
}

// Dimensions in pixels.
const (
	width     = 1180
	rowHeight = 19
	nameWidth = 420
	timeWidth = 64 // space after the bars for their durations
	indent    = 13
	margin    = 14
	charWidth = 6.6 // estimated upper bound for the font of the names
)

// row is one row of the waterfall: a span, or several sibling spans of one name.
type row struct {
	spans  []query.Span
	depth  int
	hidden int // number of omitted spans below it
}

// SVG returns a picture of the trace, below the spans that it links to. linked holds
// traces by id; a link to a trace that is not in it is drawn without its other end.
func SVG(t query.Trace, linked map[string]query.Trace, o Options) []byte {
	rows := waterfall(t, o.Rows)
	p := &picture{y: margin}
	p.title(t)
	p.legend(t, linked)
	from := map[string]point{}
	for _, id := range before(t, linked) {
		p.caption(p.origin(linked[id], t))
		p.block(path(linked[id], t), from)
	}
	p.caption("this trace")
	to := map[string]point{}
	p.block(rows, to)
	for _, s := range t.Spans {
		for _, l := range s.Links {
			if a, ok := from[l.SpanID]; ok && to[s.ID] != (point{}) {
				p.arrow(a, to[s.ID])
			}
		}
	}
	return p.bytes()
}

// waterfall orders the spans as a tree, each level by start time, in at most the given
// number of rows.
func waterfall(t query.Trace, most int) []row {
	kids := map[string][]query.Span{}
	ids := map[string]bool{}
	for _, s := range t.Spans {
		ids[s.ID] = true
	}
	for _, s := range t.Spans {
		parent := s.Parent
		if !ids[parent] {
			parent = "" // an orphaned span is drawn beside the root
		}
		kids[parent] = append(kids[parent], s)
	}
	var deepest int
	all := lay(kids, "", 0, 1<<20, &deepest)
	for limit := deepest; most > 0 && len(all) > most && limit > 1; limit-- {
		all = lay(kids, "", 0, limit-1, &deepest)
	}
	return all
}

func lay(kids map[string][]query.Span, parent string, depth, limit int, deepest *int) []row {
	*deepest = max(*deepest, depth)
	var rows []row
	for _, s := range kids[parent] {
		leaf := len(kids[s.ID]) == 0
		if n := len(rows); n > 0 && leaf && rows[n-1].depth == depth && rows[n-1].hidden == 0 {
			if last := rows[n-1].spans[0]; last.Name == s.Name && last.Service == s.Service && len(kids[last.ID]) == 0 {
				rows[n-1].spans = append(rows[n-1].spans, s)
				continue
			}
		}
		r := row{spans: []query.Span{s}, depth: depth}
		if depth == limit {
			r.hidden = below(kids, s.ID)
			rows = append(rows, r)
			continue
		}
		rows = append(rows, r)
		rows = append(rows, lay(kids, s.ID, depth+1, limit, deepest)...)
	}
	return rows
}

func below(kids map[string][]query.Span, id string) int {
	n := len(kids[id])
	for _, k := range kids[id] {
		n += below(kids, k.ID)
	}
	return n
}

// before returns the ids of the linked traces in the order of their start times.
func before(t query.Trace, linked map[string]query.Trace) []string {
	var ids []string
	for _, s := range t.Spans {
		for _, l := range s.Links {
			if other, ok := linked[l.TraceID]; ok && l.TraceID != t.ID && len(other.Spans) > 0 && !slices.Contains(ids, l.TraceID) {
				ids = append(ids, l.TraceID)
			}
		}
	}
	slices.SortStableFunc(ids, func(a, b string) int { return linked[a].Spans[0].Start.Compare(linked[b].Spans[0].Start) })
	return ids
}

// path returns the rows from the root of a trace to the spans that t links to.
func path(other, t query.Trace) []row {
	byID := map[string]query.Span{}
	for _, s := range other.Spans {
		byID[s.ID] = s
	}
	keep := map[string]bool{}
	for _, s := range t.Spans {
		for _, l := range s.Links {
			for id := l.SpanID; l.TraceID == other.ID && byID[id].ID != "" && !keep[id]; id = byID[id].Parent {
				keep[id] = true
			}
		}
	}
	short := query.Trace{ID: other.ID}
	for _, s := range other.Spans {
		if keep[s.ID] {
			short.Spans = append(short.Spans, s)
		}
	}
	return waterfall(short, 0)
}

type point struct{ x, y float64 }

type picture struct {
	b strings.Builder
	y float64
}

func (p *picture) title(t query.Trace) {
	name := t.ID
	for _, s := range t.Roots() {
		name = s.Name
	}
	first, last := bounds([]row{{spans: t.Spans}})
	p.y += 14
	p.text(margin, p.y, "h", fmt.Sprintf("%s — %s, %d spans", name, duration(last.Sub(first)), len(t.Spans)))
	p.y += 16
	p.text(margin, p.y, "m", "trace "+t.ID)
	p.y += 12
}

func (p *picture) legend(t query.Trace, linked map[string]query.Trace) {
	all := t.Services()
	for _, id := range before(t, linked) {
		for _, r := range path(linked[id], t) {
			for _, s := range r.spans {
				if !slices.Contains(all, s.Service) {
					all = append(all, s.Service)
				}
			}
		}
	}
	slices.Sort(all)
	x := float64(margin)
	p.y += 8
	for _, s := range all {
		fmt.Fprintf(&p.b, `<rect x="%.0f" y="%.0f" width="11" height="11" rx="2" class="%s"/>`, x, p.y-9, class(s))
		p.text(x+16, p.y, "n", s)
		x += 16 + float64(len(s))*charWidth + 18
	}
	p.b.WriteByte('\n')
	p.y += 6
}

// origin describes a linked trace relative to t.
func (p *picture) origin(other, t query.Trace) string {
	d := t.Spans[0].Start.Sub(other.Spans[0].Start)
	when := duration(d) + " earlier"
	if d < 0 {
		when = duration(-d) + " later"
	}
	return "linked trace " + other.ID + ", began " + when
}

func (p *picture) caption(s string) {
	p.y += 22
	p.text(margin, p.y, "m", s)
	p.y += 6
}

func bounds(rows []row) (first, last time.Time) {
	for _, r := range rows {
		for _, s := range r.spans {
			if first.IsZero() || s.Start.Before(first) {
				first = s.Start
			}
			if s.End.After(last) {
				last = s.End
			}
		}
	}
	return first, last
}

// block draws rows with a separate time scale and records the position of each span's
// start.
func (p *picture) block(rows []row, at map[string]point) {
	if len(rows) == 0 {
		return
	}
	first, last := bounds(rows)
	whole := max(last.Sub(first), time.Microsecond)
	left, right := float64(margin+nameWidth), float64(width-margin-timeWidth)
	scale := (right - left) / float64(whole)
	bottom := p.y + 14 + float64(len(rows))*rowHeight
	for tick := time.Duration(0); tick <= whole; tick += step(whole) {
		x := left + float64(tick)*scale
		fmt.Fprintf(&p.b, `<path class="g" d="M%.1f %.0fV%.0f"/>`, x, p.y+6, bottom)
		p.text(x+3, p.y+11, "t", duration(tick))
	}
	p.b.WriteByte('\n')
	p.y += 14
	for _, r := range rows {
		s := r.spans[0]
		name := s.Name
		if n := len(r.spans); n > 1 {
			name = fmt.Sprintf("%s ×%d", name, n)
		}
		if r.hidden > 0 {
			name = fmt.Sprintf("%s (+%d)", name, r.hidden)
		}
		x := float64(margin + r.depth*indent)
		look := "n"
		if failed(r) {
			look = "e"
		}
		p.text(x, p.y+13, look, cut(name, int((left-x-8)/charWidth)))
		var spent time.Duration
		end := left
		for _, s := range r.spans {
			from := left + float64(s.Start.Sub(first))*scale
			long := max(float64(s.Duration())*scale, 1.5)
			from = min(from, right-long)
			cls := class(s.Service)
			if s.Failed {
				cls += " f"
			}
			fmt.Fprintf(&p.b, `<rect x="%.1f" y="%.0f" width="%.1f" height="12" rx="2" class="%s"><title>%s</title></rect>`,
				from, p.y+3, long, cls, html.EscapeString(tip(s)))
			at[s.ID] = point{from, p.y + 9}
			spent += s.Duration()
			end = max(end, from+long)
		}
		p.text(end+4, p.y+13, "t", duration(spent))
		p.b.WriteByte('\n')
		p.y += rowHeight
	}
}

func failed(r row) bool {
	return slices.ContainsFunc(r.spans, func(s query.Span) bool { return s.Failed })
}

// tip returns the tooltip of a bar.
func tip(s query.Span) string {
	text := s.Service + ": " + s.Name + ", " + duration(s.Duration())
	if s.Failed {
		text += ", failed"
		if why := s.Attributes["error.type"]; why != "" {
			text += ": " + why
		}
	}
	return text
}

// arrow draws an arrow from the span that sent a message to the span that it started.
func (p *picture) arrow(from, to point) {
	x := min(from.x, to.x) - 12
	fmt.Fprintf(&p.b, `<path class="l" d="M%.1f %.1fH%.1fV%.1fH%.1f" marker-end="url(#a)"/>`+"\n", from.x, from.y, x, to.y, to.x-2)
}

func (p *picture) text(x, y float64, class, s string) {
	fmt.Fprintf(&p.b, `<text x="%.1f" y="%.0f" class="%s">%s</text>`, x, y, class, html.EscapeString(s))
}

// style is the style sheet. The colours of services are visible on both backgrounds.
const style = `<style>
svg{--f:#1f2328;--b:#fff;--m:#636c76;--g:#d8dee4;--e:#cf222e}
@media(prefers-color-scheme:dark){svg{--f:#e6edf3;--b:#0d1117;--m:#8d96a0;--g:#30363d;--e:#ff7b72}}
text{font:11.5px ui-sans-serif,system-ui,sans-serif}
.bg{fill:var(--b)}.h{font-size:15px;font-weight:600;fill:var(--f)}.n{fill:var(--f)}.e{fill:var(--e)}.m{fill:var(--m)}
.t{fill:var(--m);font-size:10px}.g{stroke:var(--g);fill:none}.l{stroke:var(--m);fill:none;stroke-dasharray:4 3}.a{fill:var(--m)}
.f{stroke:var(--e);stroke-width:2}
.s1{fill:#b07aa1}.s2{fill:#e08b2e}.s3{fill:#4c83c3}.s4{fill:#d0566b}.s5{fill:#2fa39b}.s6{fill:#5aa24e}.s0{fill:#8a8f98}
</style>
`

// class returns the style class of a service, which is the same in every picture.
func class(service string) string {
	known := []string{"heartbeat", "inference-router", "loop", "policy", "social", "treasury"}
	return fmt.Sprintf("s%d", slices.Index(known, service)+1)
}

func (p *picture) bytes() []byte {
	height := p.y + margin
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %.0f" width="%d" height="%.0f" role="img">
%s<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="a" d="M0 0L8 4L0 8z"/></marker></defs>
<rect class="bg" width="100%%" height="100%%" rx="6"/>
%s</svg>
`, width, height, width, height, style, p.b.String())
}

// step returns the distance of the ticks: 1, 2 or 5 times a power of ten, so that there
// are at most six ticks.
func step(whole time.Duration) time.Duration {
	for unit := time.Microsecond; ; unit *= 10 {
		for _, n := range []time.Duration{1, 2, 5} {
			if whole/(n*unit) <= 5 {
				return n * unit
			}
		}
	}
}

// duration formats a duration with at most three digits and a unit.
func duration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return trim(fmt.Sprintf("%.2f", float64(d)/float64(time.Millisecond))) + " ms"
	case d < time.Second:
		return trim(fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond))) + " ms"
	default:
		return trim(fmt.Sprintf("%.2f", d.Seconds())) + " s"
	}
}

func trim(s string) string { return strings.TrimSuffix(strings.TrimRight(s, "0"), ".") }

// cut shortens a text to n characters.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n && n > 1 {
		return string(r[:n-1]) + "…"
	}
	return s
}
