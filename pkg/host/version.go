package host

import "runtime/debug"

// version and commit are set by the linker when a release is built.
var (
	version = "" //nolint:gochecknoglobals // the linker can set only variables
	commit  = "" //nolint:gochecknoglobals // of the source; set by the linker
)

// Version returns the version of this build: the release, or "0.0.0-dev", with the commit
// if it is known. It is a semantic version, as NATS service discovery requires.
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
