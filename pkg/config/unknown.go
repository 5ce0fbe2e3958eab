package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/spelling"
)

// Unknown returns a sentence for each ANIMA_ variable of environ, in the form of
// [os.Environ], that is not one of the known settings. The sentences are sorted, and
// contain the nearest known name if it is similar, but no values.
func Unknown(known []Field, environ []string) []string {
	var names []string
	for _, f := range known {
		names = append(names, f.Env)
		if f.Secret {
			names = append(names, f.Env+"_FILE")
		}
	}
	slices.Sort(names)
	var out []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "ANIMA_") {
			continue
		}
		if _, ok := slices.BinarySearch(names, name); ok {
			continue
		}
		text := fmt.Sprintf("%s is not a setting", name)
		// At most a third of the part after ANIMA_ may differ.
		if near := spelling.Nearest(name, names, max(1, (len(name)-len("ANIMA_"))/3)); near != "" {
			text += fmt.Sprintf(": did you mean %s?", near)
		}
		out = append(out, text)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
