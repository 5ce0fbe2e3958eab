package soul

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/turn"
)

// File is the name of the soul in an agent's folder, and Edited where an edited one
// is kept that was not taken over.
const (
	File   = "SOUL.md"
	Edited = "SOUL.md.edited"
)

// layerBudget is what the soul may take of a prompt, in tokens.
const layerBudget = 2_000

// Version is a soul as it is stored.
type Version struct {
	Agent   string
	Number  int64  // from 1
	ID      string // of the change; the same one again is the same version
	Content string // the file
	Hash    string // of Content, SHA-256 in hex
	Source  string // agent, human, system, genesis or reflection
	Reason  string
	At      int64
}

// Deeds are what an agent has done, as far as loop knows.
type Deeds struct {
	Tools   []string // that it has used, at most 50
	Peers   []string // addresses that it met, at most 10
	Turns   int64
	Spent   api.Micros // on thoughts
	Balance string     // as last seen, "" if never
}

// Store keeps the versions.
type Store interface {
	// Souls are the versions of an agent, the latest first.
	Souls(ctx context.Context, agent string, limit int) ([]Version, error)
	// AddSoul stores a version, or returns the one that its ID stored before.
	// Errors: Conflict when the number is taken, or is not the next one.
	AddSoul(ctx context.Context, v Version) (Version, error)
	Deeds(ctx context.Context, agent string) (Deeds, error)
}

// Keeper keeps souls. It is safe for concurrent use, in several replicas.
type Keeper struct {
	Store Store
	Now   func() time.Time

	layers sandbox.Cache[string] // by the hash of the version
}

// Layer implements [turn.Source]. A full disk leaves the soul without a file, not
// the agent without a soul. Neither the row nor the file is read again while the row's
// hash, as the agent's revisions have it, and the file are as they were.
func (k *Keeper) Layer(ctx context.Context, a turn.Agent) (turn.Layer, error) {
	l := turn.Layer{Name: "soul", Budget: layerBudget}
	var err error
	l.Text, err = k.layers.Get(a.Workspace, a.Revisions.Soul, func() (sandbox.Made[string], error) {
		s, hash, err := k.current(ctx, a)
		if err != nil && s.Version == 0 {
			return sandbox.Made[string]{}, err
		}
		made := sandbox.Made[string]{Value: s.Prompt()}
		if made.Size = len(made.Value); err == nil && hash != "" && hash == a.Revisions.Soul { // else it has changed since
			made.Paths = []string{File}
		}
		return made, nil
	})
	if err != nil {
		return turn.Layer{}, err
	}
	return l, nil
}

// Soul is the agent's soul as it stands. The first time it is made of the file that
// is there, or of the agent's genesis. Whatever is wrong with the file does not
// matter then: the row is the soul, and the file is written anew. With an error of
// writing it comes the soul all the same.
func (k *Keeper) Soul(ctx context.Context, a turn.Agent) (Soul, error) {
	s, _, err := k.current(ctx, a)
	return s, err
}

// current is Soul with the hash of its version, "" for a first one.
func (k *Keeper) current(ctx context.Context, a turn.Agent) (Soul, string, error) {
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
func (k *Keeper) birth(ctx context.Context, a turn.Agent) (Soul, error) {
	at := k.Now().UnixMicro()
	s, source, reason := Soul{}, "genesis", "born"
	if file, err := read(a); err == nil {
		s, source, reason = Parse(file), "human", "found in the folder"
	}
	if len(s.Validate()) > 0 {
		s = Soul{CorePurpose: cut(a.Genesis, MaxPurpose)}.normal()
		source, reason = "genesis", "born"
	}
	if len(s.Validate()) > 0 { // a creator may say what no soul may
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

// Change makes a new version of what edit makes of the soul. Nothing is stored when
// that changes nothing. Errors: Invalid with every fault in Details.
//
// Dying after the row is stored, the file is older than it until somebody reads the
// soul; dying before, nothing has happened.
func (k *Keeper) Change(ctx context.Context, a turn.Agent, v Version, edit func(*Soul)) (Soul, error) {
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
			continue // somebody else changed it meanwhile
		}
		if err != nil {
			return Soul{}, err
		}
		return Parse(stored.Content), k.mend(ctx, a, stored)
	}
}

// add stores s as the version after a number.
func (k *Keeper) add(ctx context.Context, a turn.Agent, s Soul, v Version, after int64) (Version, error) {
	s.Version, s.UpdatedAt, s.GenesisAlignment = after+1, stamp(v.At), Alignment(s.CorePurpose, a.Genesis)
	s = s.normal()
	v.Number, v.Content = s.Version, s.String()
	v.Hash = hash(v.Content)
	return k.Store.AddSoul(ctx, v)
}

// mend writes the file of a version, unless it is there. A file that no version
// ever was is kept beside.
func (k *Keeper) mend(ctx context.Context, a turn.Agent, v Version) error {
	file, err := read(a)
	if err == nil && hash(file) == v.Hash {
		return nil
	}
	if err == nil {
		all, err := k.Store.Souls(ctx, a.ID, 1000)
		if err != nil {
			return err
		}
		known := false
		for _, old := range all {
			known = known || old.Hash == hash(file)
		}
		if !known {
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

// read is the file as it is.
func read(a turn.Agent) (string, error) {
	b, err := sandbox.ReadFile(a.Workspace, File, 256<<10)
	return string(b), err
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func stamp(at int64) string { return time.UnixMicro(at).UTC().Format(time.RFC3339) }

// cut is at most n characters of a text.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n])
	}
	return s
}
