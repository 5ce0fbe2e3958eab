package host

import "runtime/debug"

// Set by the linker when a release is built.
var (
	version = "" //nolint:gochecknoglobals // the linker can set nothing else
	commit  = "" //nolint:gochecknoglobals // of the source; the linker sets it too
)

// Version of this build: the release, or "0.0.0-dev", with the commit when the
// build knows it. It is a semantic version, as discovery wants it.
func Version() string {
	switch {
	case version != "" && commit != "":
		return version + "+" + commit[:min(12, len(commit))]
	case version != "":
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return "0.0.0-dev+" + s.Value[:12]
			}
		}
	}
	return "0.0.0-dev"
}
