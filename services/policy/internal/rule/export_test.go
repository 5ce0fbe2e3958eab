package rule

import "slices"

// StandardForTest returns a rule of [Standard], so that a test can evaluate it without
// the rules of higher priority.
func StandardForTest(id string) Rule {
	all := standard()
	return all[slices.IndexFunc(all, func(r Rule) bool { return r.ID == id })]
}
