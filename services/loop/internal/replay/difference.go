package replay

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// plain converts a value to the types of decoded JSON.
func plain(v any) (any, error) {
	data, err := api.Encode(v)
	if err != nil {
		return nil, err
	}
	var out any
	return out, json.Unmarshal(data, &out)
}

// diff finds the first path at which two values differ. Missing and empty values are
// equal, because JSON cannot always distinguish them.
func diff(path string, a, b any) (where, x, y string, same bool) {
	if empty(a) && empty(b) {
		return "", "", "", true
	}
	switch left := a.(type) {
	case map[string]any:
		right, ok := b.(map[string]any)
		if !ok {
			break
		}
		return diffMaps(path, left, right)
	case []any:
		right, ok := b.([]any)
		if !ok || len(left) != len(right) {
			break
		}
		for i := range left {
			if where, x, y, same := diff(path+"["+strconv.Itoa(i)+"]", left[i], right[i]); !same {
				return where, x, y, false
			}
		}
		return "", "", "", true
	default:
		if a == b {
			return "", "", "", true
		}
	}
	x, y = around(fmt.Sprint(a), fmt.Sprint(b))
	return strings.TrimPrefix(path, "."), x, y, false
}

func diffMaps(path string, a, b map[string]any) (where, x, y string, same bool) {
	all := maps.Clone(a)
	maps.Copy(all, b)
	for _, k := range slices.Sorted(maps.Keys(all)) {
		if where, x, y, same := diff(path+"."+k, a[k], b[k]); !same {
			return where, x, y, false
		}
	}
	return "", "", "", true
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case map[string]any:
		for _, w := range v {
			if !empty(w) {
				return false
			}
		}
		return true
	}
	return reflect.ValueOf(v).IsZero()
}

// shownOf is the length of text shown on each side of a difference, in bytes.
const shownOf = 60

// around returns excerpts of two texts around their first difference.
func around(a, b string) (string, string) {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	show := func(s string) string {
		from, to := max(0, n-shownOf), min(len(s), n+shownOf)
		out := strings.ToValidUTF8(s[from:to], "")
		if from > 0 {
			out = "…" + out
		}
		if to < len(s) {
			out += "…"
		}
		return out
	}
	return show(a), show(b)
}
