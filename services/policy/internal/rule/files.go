package rule

import (
	"path"
	"slices"
	"strings"
)

// writers are the tools that write the file named by their argument path.
var writers = []string{"write_file", "edit_own_file"}

// write denies writes to protected files and secrets at any authority.
func (g *protectedPaths) write(c *Call) string {
	if e := g.protected(c.location()); e != "" {
		return e + " is protected and cannot be written; write to another file, or ask the creator to change it"
	}
	return ""
}

// read denies reads of secrets at any authority.
func (g *protectedPaths) read(c *Call) string {
	if e := g.secret(c.location()); e != "" {
		return e + " holds secrets and cannot be read; use the tool that needs the secret instead"
	}
	return ""
}

// location returns the location of the argument path.
func (c *Call) location() location { return locate(c.Workspace, c.Workspace, c.Values.String("path")) }

// traversal denies paths of files and repositories outside the workspace. It compares
// text only. The executor opens files through os.Root, which refuses a symbolic link that
// leads out of the workspace.
func traversal(c *Call) string {
	if !path.IsAbs(c.Workspace) {
		return "the agent has no workspace, so no file can be reached; ask the operator to apply the agent again"
	}
	raw, loc := c.Values.String("path"), c.location()
	root := loc.abs == path.Clean(c.Workspace)
	switch {
	case c.Tool == "edit_own_file" && strings.Contains(raw, "//"):
		return "the path holds //; write it plainly"
	case !loc.inside:
		return "the path is outside the workspace; use a path relative to it"
	case slices.Contains(writers, c.Tool) && (root || strings.HasSuffix(raw, "/")):
		return "the path is a folder; name a file below the workspace"
	case c.Tool == "git_clone" && root:
		return "a repository cannot be cloned over the workspace; name a folder in it"
	}
	return ""
}
