package builtin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/anima-run/anima/pkg/api/catalog"

	"github.com/anima-run/anima/services/loop/internal/engine"
	"github.com/anima-run/anima/services/loop/internal/sandbox"
	"github.com/anima-run/anima/services/loop/internal/tools/git"
)

// selfTools returns the tools that change the agent's files, genesis prompt and packages.
func selfTools(cfg Config, store Store) []engine.Tool {
	npm := engine.Builtin("install_npm_package", onePackage, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
		if err := needsNetwork(c.Agent); err != nil {
			return engine.Output{}, err
		}
		// Install scripts are disabled, because the package has not been reviewed yet.
		return run(ctx, cfg, c, "npm install --ignore-scripts --no-audit --no-fund -- '"+a.String("package")+"'", int(npmTime.Seconds()))
	})
	npm.Timeout = npmTime + 5*time.Second
	npm.Offered = func(a engine.Agent) bool { return cfg.NPM && a.Network }
	return []engine.Tool{
		engine.Builtin("edit_own_file", nil, editOwnFile),
		onRepo("revert_last_edit", nil, revertLastEdit),
		engine.Builtin("update_genesis_prompt", plainPrompt, func(ctx context.Context, c engine.Call, a catalog.Args) (engine.Output, error) {
			prompt := visible(a.String("new_prompt"))
			if err := store.SetGenesis(ctx, c.Agent.ID, prompt, a.String("reason"), c.Key, c.At); err != nil {
				return engine.Output{}, err
			}
			return engine.Output{Text: fmt.Sprintf("the genesis prompt has %d characters now and is used from the next run on; the old one is kept", utf8.RuneCountInString(prompt))}, nil
		}),
		npm,
	}
}

const npmTime = 5 * time.Minute

// HasNPM reports whether a command of an agent would find npm.
func HasNPM() bool {
	for _, dir := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if info, err := os.Stat(filepath.Join(dir, "npm")); err == nil && info.Mode().Perm()&0o111 != 0 {
			return true
		}
	}
	return false
}

// onePackage accepts names that are one shell word in single quotes and not an option.
func onePackage(a catalog.Args) error {
	name := a.String("package")
	if strings.Trim(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@._/-") != "" || strings.HasPrefix(name, "-") || strings.Contains(name, "..") {
		return errors.New("package must be a name like express or @scope/name")
	}
	return nil
}

// editOwnFile writes a file and commits it. Before the write it commits the current
// content, if that is not recorded yet. A call that is repeated after a crash finds its
// commit, or does the remaining steps.
func editOwnFile(ctx context.Context, c engine.Call, a catalog.Args) (out engine.Output, err error) {
	path, content := a.String("path"), []byte(a.String("content"))
	r, err := git.Open(ctx, c.Agent.Workspace, "")
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if done, err := r.Edited(c.Key); err != nil || done != "" {
		return engine.Output{Text: "changed " + path + ", commit " + done}, err
	}
	name, err := git.Within(c.Agent.Workspace, path)
	if err != nil {
		return out, err
	}
	before, err := sandbox.ReadFile(c.Agent.Workspace, name, maxRead)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return out, err
	}
	// If an earlier attempt crashed after the write, the file already has the new
	// content, which is not to be recorded as the old one.
	if string(before) != string(content) {
		if _, err := r.Record(name, "Before: "+filepath.Base(name), who(c)); err != nil {
			return out, err
		}
	}
	if err := sandbox.WriteFile(c.Agent.Workspace, name, content); err != nil {
		return out, err
	}
	hash, err := r.RecordEdit(name, a.String("description"), c.Key, who(c))
	if err != nil {
		return out, err
	}
	if hash == "" {
		return engine.Output{Text: path + " has that content already"}, nil
	}
	added, removed := git.Lines(before, content)
	return engine.Output{Text: fmt.Sprintf("changed %s: %d lines added, %d removed, commit %s; revert_last_edit takes it back", path, added, removed, hash)}, nil
}

func revertLastEdit(r *git.Repo, c engine.Call, _ catalog.Args) (string, error) {
	if done, err := r.Edited(c.Key); err != nil || done != "" {
		return "taken back, commit " + done, err
	}
	did, err := r.Revert(c.Key, who(c), func(name string, content []byte) error {
		return sandbox.WriteFile(c.Agent.Workspace, name, content)
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("took back %q: %s is as it was, commit %s", did.What, did.File, did.Hash), nil
}

// plainPrompt refuses a genesis prompt that contains markers of roles or tool calls
// (docs/reference/loop.md, Genesis prompt).
func plainPrompt(a catalog.Args) error {
	text := visible(a.String("new_prompt"))
	folded := strings.ToLower(text)
	for _, mark := range []string{
		"<system>", "</system>", "<prompt>", "</prompt>", "[inst]", "[/inst]", "<<sys>>", "<</sys>>", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
		"tool_call", "function_call",
	} {
		if strings.Contains(folded, mark) {
			return fmt.Errorf("new_prompt holds %q, which is no plain text", mark)
		}
	}
	if strings.TrimSpace(text) == "" {
		return errors.New("new_prompt is empty")
	}
	return nil
}

// visible returns a text with compatibility forms normalised, and without invisible and
// control characters (docs/reference/context.md, hidden marker).
func visible(s string) string {
	return norm.NFKC.String(strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)) {
			return -1
		}
		return r
	}, s))
}
