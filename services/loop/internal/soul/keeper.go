package soul

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/sanitize"
)

// File is the name of the soul's file in an agent's folder. Edited is the name under
// which a file that is no version is kept.
const (
	File   = "SOUL.md"
	Edited = "SOUL.md.edited"
)

// layerBudget is the largest size of the soul in a prompt, in tokens.
const layerBudget = 2_000

// Version is a stored version of a soul.
type Version struct {
	Agent   string
	Number  int64  // from 1
	ID      string // of the change; the same change has the same version
	Content string // the text of the file
	Hash    string // of Content, SHA-256 in hex
	Source  string // agent, human, system, genesis or reflection
	Reason  string
	At      int64
}

// Deeds summarises the activity of an agent.
type Deeds struct {
	Tools   []string // tools that it has used, at most 50
	Peers   []string // addresses of its relations, at most 10
	Turns   int64
	Spent   api.Micros // on model calls
	Balance string     // as last recorded by the agent, its creator or heartbeat; "" if never
}

// Store stores the versions of souls.
type Store interface {
	// Souls returns at most limit versions of an agent, the latest first.
	Souls(ctx context.Context, agent string, limit int) ([]Version, error)
	// AddSoul stores a version, or returns the version that its ID stored before. Errors:
	// Conflict when the number is taken, or is not the next one.
	AddSoul(ctx context.Context, v Version) (Version, error)
	Deeds(ctx context.Context, agent string) (Deeds, error)
}

// Keeper manages souls. It is safe for concurrent use, also by several replicas.
type Keeper struct {
	Store Store
	Now   func() time.Time

	layers sandbox.Cache[string] // by the hash of the version
}

// Layer implements [turn.Source]. If the file cannot be written, as on a full disk, it
// still returns the soul. It reads neither the row nor the file again while the row's
// hash in the agent's revisions and the file are unchanged.
func (k *Keeper) Layer(ctx context.Context, a engine.Agent) (engine.Layer, error) {
	l := engine.Layer{Name: "soul", Budget: layerBudget}
	var err error
	l.Text, err = k.layers.Get(a.Workspace, a.Revisions.Soul, func() (sandbox.Made[string], error) {
		s, hash, err := k.current(ctx, a)
		if err != nil && s.Version == 0 {
			return sandbox.Made[string]{}, err
		}
		made := sandbox.Made[string]{Value: s.Prompt()}
		if made.Size = len(made.Value); err == nil && hash != "" && hash == a.Revisions.Soul { // otherwise it has changed since
			made.Paths = []string{File}
		}
		return made, nil
	})
	if err != nil {
		return engine.Layer{}, err
	}
	return l, nil
}

// Soul returns the agent's soul. The first version is made from the file, if there is a
// valid one, or from the agent's genesis prompt. After that the row is the soul, and the
// file is written again if it differs. If that fails, Soul returns the soul and the
// error.
func (k *Keeper) Soul(ctx context.Context, a engine.Agent) (Soul, error) {
	s, _, err := k.current(ctx, a)
	return s, err
}

// current is Soul, and returns the hash of the version, "" for a first one.
func (k *Keeper) current(ctx context.Context, a engine.Agent) (Soul, string, error) {
	all, err := k.Store.Souls(ctx, a.ID, 1)
	if err != nil {
		return Soul{}, "", err
	}
	if len(all) == 0 {
		s, err := k.birth(ctx, a)
		return s, "", err
	}
	return Parse(all[0].Content), all[0].Hash, k.mend(ctx, a, all[0])
}

// birth makes the first version.
func (k *Keeper) birth(ctx context.Context, a engine.Agent) (Soul, error) {
	at := k.Now().UnixMicro()
	s, source, reason := Soul{}, "genesis", "born"
	if file, err := read(a); err == nil {
		s, source, reason = Parse(file), "human", "found in the folder"
	}
	if len(s.Validate()) > 0 {
		s = Soul{CorePurpose: sanitize.First(a.Genesis, maxPurpose)}.normal()
		source, reason = "genesis", "born"
	}
	if len(s.Validate()) > 0 { // a genesis prompt may have texts that a soul must not have
		s = Soul{CorePurpose: "Be of use to my creator."}
	}
	s.Name, s.Address, s.Creator, s.Genesis = a.Name, a.Address, a.Creator, a.Genesis
	if s.BornAt == "" {
		s.BornAt = stamp(at)
	}
	v, err := k.add(ctx, a, s, Version{Agent: a.ID, ID: "birth", Source: source, Reason: reason, At: at}, 0)
	if err != nil {
		return Soul{}, err
	}
	return Parse(v.Content), k.mend(ctx, a, v)
}

// Change stores what edit makes of the soul as a new version. It stores nothing if edit
// changes nothing. Errors: Invalid with every fault in Details.
//
// After a crash between the row and the file the file is older until the soul is read; a
// crash before the row changes nothing.
func (k *Keeper) Change(ctx context.Context, a engine.Agent, v Version, edit func(*Soul)) (Soul, error) {
	for try := 0; ; try++ {
		s, err := k.Soul(ctx, a)
		if err != nil {
			return Soul{}, err
		}
		before, number := s.String(), s.Version
		edit(&s)
		if s = s.normal(); s.String() == before {
			return s, nil
		}
		if faults := s.Validate(); len(faults) > 0 {
			return Soul{}, &api.Error{Code: api.Invalid, Message: "the soul is not changed: " + strings.Join(faults, "; "), Details: faults}
		}
		v.Agent = a.ID
		stored, err := k.add(ctx, a, s, v, number)
		if api.CodeOf(err) == api.Conflict && try < 5 {
			continue // a concurrent change has stored this version
		}
		if err != nil {
			return Soul{}, err
		}
		return Parse(stored.Content), k.mend(ctx, a, stored)
	}
}

// add stores s as the version after a number.
func (k *Keeper) add(ctx context.Context, a engine.Agent, s Soul, v Version, after int64) (Version, error) {
	s.Version, s.UpdatedAt, s.GenesisAlignment = after+1, stamp(v.At), Alignment(s.CorePurpose, a.Genesis)
	s = s.normal()
	v.Number, v.Content = s.Version, s.String()
	v.Hash = hash(v.Content)
	return k.Store.AddSoul(ctx, v)
}

// mend writes the file of a version if it differs. A file that is none of the latest 1000
// versions is kept as [Edited].
func (k *Keeper) mend(ctx context.Context, a engine.Agent, v Version) error {
	file, err := read(a)
	if err == nil && hash(file) == v.Hash {
		return nil
	}
	if err == nil {
		all, err := k.Store.Souls(ctx, a.ID, 1000)
		if err != nil {
			return err
		}
		now := hash(file)
		if !slices.ContainsFunc(all, func(old Version) bool { return old.Hash == now }) {
			if err := sandbox.WriteFile(a.Workspace, Edited, []byte(file)); err != nil {
				return fmt.Errorf("soul of %s: %w", a.ID, err)
			}
		}
	}
	if err := sandbox.WriteFile(a.Workspace, File, []byte(v.Content)); err != nil {
		return fmt.Errorf("soul of %s: %w", a.ID, err)
	}
	return nil
}

// read returns the content of the file.
func read(a engine.Agent) (string, error) {
	b, err := sandbox.ReadFile(a.Workspace, File, 256<<10)
	return string(b), err
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func stamp(at int64) string { return time.UnixMicro(at).UTC().Format(time.RFC3339) }
