package engine

import (
	"github.com/anima-run/anima/services/loop/internal/prompt"
	"github.com/anima-run/anima/services/loop/internal/token"
)

// learned returns the model that answered last and the ratio of its reported to its
// counted tokens.
func learned(calls []Reported) (string, token.Ratio) {
	ratio := token.Even
	if len(calls) == 0 {
		return "", ratio
	}
	model := calls[len(calls)-1].Model
	for _, c := range calls {
		if c.Model == model {
			ratio = ratio.Learn(c.Counted, c.Reported)
		}
	}
	return model, ratio
}

// LastModel returns the model that answered last, "" if there is none.
func (c *Conversation) LastModel() string {
	model, _ := learned(c.Calls)
	return model
}

// window sets the window of the prompt to that of the model that will probably answer:
// the agent's configured model, or else the model that answered last.
func (e *Engine) window(m *promptBuild, a Agent, models ...string) {
	m.in.Window = or(a.Window, prompt.DefaultWindow)
	m.in.Reserve = or(a.Reserve, prompt.DefaultReserve)
	m.in.Flush = or(a.Flush, prompt.DefaultFlush)
	for _, id := range models {
		for _, known := range m.models {
			if known.ID == id && known.Usable && known.ContextWindow > 0 {
				m.in.Window = known.ContextWindow
				if a.Window > 0 { // the creator limits the cost of prompts
					m.in.Window = min(m.in.Window, a.Window)
				}
				m.bound()
				return
			}
		}
	}
	m.bound()
}

// bound limits the reserve to a quarter and the flush threshold to half of the window.
func (m *promptBuild) bound() {
	m.in.Reserve = min(m.in.Reserve, m.in.Window/4)
	m.in.Flush = min(m.in.Flush, m.in.Window/2)
}

// smaller reduces the window to that of the next smaller model, or to half if there is
// none, and at most to a size that the current prompt exceeds. It returns false if the
// window was already reduced.
func (m *promptBuild) smaller() bool {
	if m.shrunk {
		return false
	}
	window := int64(0)
	for _, known := range m.models {
		if known.Usable && known.ContextWindow < m.in.Window {
			window = max(window, known.ContextWindow)
		}
	}
	if window == 0 {
		window = m.in.Window / 2
	}
	m.from = m.in.Window
	m.in.Window, m.shrunk = min(window, m.prompt.Tokens*3/4+m.in.Reserve), true
	m.bound()
	return true
}

func or(v, otherwise int64) int64 {
	if v > 0 {
		return v
	}
	return otherwise
}
