package rule

import (
	"path"
	"strings"
)

// writers are the tools that write the file named by their argument path.
var writers = []string{"write_file", "edit_own_file"}

// protectedFiles denies writes to protected files and secrets at any authority.
func protectedFiles(g *protectedPaths) Rule {
	return Rule{
		ID: "path.protected_files", Priority: 200,
		Applies: Selector{Tools: writers},
		Does:    "refuses writes to secrets, to the agent's state, soul and constitution, and to the source of its guards",
		Codes:   []Code{ProtectedFile},
		Data:    g,
		Check: func(c *Call) (*Finding, error) {
			if e := g.protected(locate(c.Workspace, c.Workspace, c.Values.String("path"))); e != "" {
				return deny(ProtectedFile, "%s is protected and cannot be written; write to another file, or ask the creator to change it", e), nil
			}
			return nil, nil
		},
	}
}

// readSensitive denies reads of secrets at any authority.
func readSensitive(g *protectedPaths) Rule {
	return Rule{
		ID: "path.read_sensitive", Priority: 200,
		Applies: Selector{Tools: []string{"read_file"}},
		Does:    "refuses reads of keys, credentials, environment files and the agent's state",
		Codes:   []Code{SensitiveFileRead},
		Data:    g.Secrets,
		Check: func(c *Call) (*Finding, error) {
			if e := g.secret(locate(c.Workspace, c.Workspace, c.Values.String("path"))); e != "" {
				return deny(SensitiveFileRead, "%s holds secrets and cannot be read; use the tool that needs the secret instead", e), nil
			}
			return nil, nil
		},
	}
}

// traversal denies paths of files and repositories outside the workspace. It compares
// text only. The executor opens files through os.Root, which refuses a symbolic link that
// leads out of the workspace.
func traversal() Rule {
	return Rule{
		ID: "path.traversal_detection", Priority: 200,
		Applies: Selector{Tools: []string{
			"read_file", "write_file", "edit_own_file",
			"git_status", "git_diff", "git_commit", "git_log", "git_push", "git_branch", "git_clone",
		}},
		Does:  "refuses paths outside the agent's workspace",
		Codes: []Code{PathTraversal},
		Check: func(c *Call) (*Finding, error) {
			if !path.IsAbs(c.Workspace) {
				return deny(PathTraversal, "the agent has no workspace, so no file can be reached; ask the operator to apply the agent again"), nil
			}
			raw := c.Values.String("path")
			if c.Tool == "edit_own_file" && strings.Contains(raw, "//") {
				return deny(PathTraversal, "the path holds //; write it plainly"), nil
			}
			loc := locate(c.Workspace, c.Workspace, raw)
			if !loc.inside {
				return deny(PathTraversal, "the path is outside the workspace; use a path relative to it"), nil
			}
			root := loc.abs == path.Clean(c.Workspace)
			switch c.Tool {
			case "write_file", "edit_own_file":
				if root || strings.HasSuffix(raw, "/") {
					return deny(PathTraversal, "the path is a folder; name a file below the workspace"), nil
				}
			case "git_clone":
				if root {
					return deny(PathTraversal, "a repository cannot be cloned over the workspace; name a folder in it"), nil
				}
			}
			return nil, nil
		},
	}
}
