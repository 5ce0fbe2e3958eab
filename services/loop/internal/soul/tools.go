package soul

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
)

// minAlignment is the alignment below which a reflection suggests to return to the
// genesis prompt (docs/reference/memory.md, Soul versions).
const minAlignment = 0.5

// Tools returns the four tools of the soul (docs/reference/memory.md, Tools).
func Tools(k *Keeper) []engine.Tool {
	return []engine.Tool{updateSoul(k), reflectOnSoul(k), viewSoul(k), viewSoulHistory(k)}
}

func updateSoul(k *Keeper) engine.Tool {
	return engine.Builtin("update_soul", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		v := Version{ID: c.Key, Source: "agent", Reason: a.String("reason"), At: c.At}
		s, err := k.Change(ctx, c.Agent, v, func(s *Soul) {
			for _, p := range s.parts() {
				if p.key == a.String("section") {
					p.set(a.String("content"))
				}
			}
		})
		if err != nil {
			return engine.Output{}, err
		}
		return engine.Output{Text: fmt.Sprintf("your soul is at version %d; its purpose is %.0f %% aligned with your genesis", s.Version, s.GenesisAlignment*100)}, nil
	})
}

func reflectOnSoul(k *Keeper) engine.Tool {
	return engine.Builtin("reflect_on_soul", nil, func(ctx context.Context, c engine.Call, _ catalog.Args) (engine.Output, error) {
		s, err := k.Reflect(ctx, c.Agent, c.Key, c.At)
		if err != nil {
			return engine.Output{}, err
		}
		text := fmt.Sprintf("reflected; your soul is at version %d, alignment with your genesis %.4f", s.Version, s.GenesisAlignment)
		for _, w := range Suggestions(s) {
			text += "\n- " + w
		}
		return engine.Output{Text: text}, nil
	})
}

// Reflect updates the sections that are derived from the agent's activity. It stores a
// version only if they change.
func (k *Keeper) Reflect(ctx context.Context, a engine.Agent, id string, at int64) (Soul, error) {
	d, err := k.Store.Deeds(ctx, a.ID)
	if err != nil {
		return Soul{}, err
	}
	return k.Change(ctx, a, Version{ID: id, Source: "reflection", Reason: "reflection", At: at}, func(s *Soul) {
		before := s.Capabilities + "\x00" + s.Relationships + "\x00" + s.Financial
		s.Capabilities, s.Relationships = items(d.Tools), items(d.Peers)
		s.Financial = fmt.Sprintf("%d turns have cost %s.", d.Turns, d.Spent)
		if d.Balance != "" {
			s.Financial += "\nThe balance was last seen as: " + strings.Join(strings.Fields(d.Balance), " ")
		}
		*s = s.normal()
		if s.Capabilities+"\x00"+s.Relationships+"\x00"+s.Financial != before {
			s.LastReflected = stamp(at)
		}
	})
}

// name matches the names of tools and peers that a soul may contain. Others are left out,
// because models invent tools and peers choose their names.
var name = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

func items(list []string) string {
	list = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return !name.MatchString(s) })
	if len(list) == 0 {
		return ""
	}
	return "- " + strings.Join(list, "\n- ")
}

// Suggestions returns what the agent should consider to change.
func Suggestions(s Soul) []string {
	var out []string
	if s.GenesisAlignment < minAlignment {
		out = append(out, "your core purpose differs from your genesis prompt: "+
			"read both with view_soul and correct the purpose with update_soul, or give the reason for the difference")
	}
	if len(s.Values) == 0 {
		out = append(out, "you have no values: add some with update_soul")
	}
	return out
}

func viewSoul(k *Keeper) engine.Tool {
	return engine.Builtin("view_soul", nil, func(ctx context.Context, c engine.Call, _ catalog.Args) (engine.Output, error) {
		s, err := k.Soul(ctx, c.Agent)
		if err != nil && s.Version == 0 {
			return engine.Output{}, err
		}
		return engine.Output{Text: s.String()}, nil
	})
}

func viewSoulHistory(k *Keeper) engine.Tool {
	return engine.Builtin("view_soul_history", nil, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		all, err := k.Store.Souls(ctx, c.Agent.ID, int(a.Int("limit", 10)))
		if err != nil {
			return engine.Output{}, err
		}
		var b strings.Builder
		for _, v := range all {
			fmt.Fprintf(&b, "version %d, %s, by %s: %s (sha-256 %s)\n", v.Number, time.UnixMicro(v.At).UTC().Format(time.RFC3339), v.Source, v.Reason, v.Hash)
		}
		if len(all) == 0 {
			b.WriteString("your soul has no versions yet")
		}
		return engine.Output{Text: strings.TrimSuffix(b.String(), "\n")}, nil
	})
}
