package api_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

func TestPageLimit(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int]int{0: 50, 1: 1, api.MaxPage: api.MaxPage} {
		if got, err := api.PageLimit(limit, 50); got != want || err != nil {
			t.Errorf("a limit of %d: got %d, %v, want %d", limit, got, err, want)
		}
	}
	for _, limit := range []int{-1, api.MaxPage + 1} {
		if _, err := api.PageLimit(limit, 50); api.CodeOf(err) != api.Invalid || api.Wire(err).Next == "" {
			t.Errorf("a limit of %d: got %v, want invalid and what to do", limit, err)
		}
	}
}

func TestCutPage(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 400<<10)
	for name, tt := range map[string]struct {
		all   []string
		limit int
		keyed bool
		want  int
		page  api.Page
	}{
		"nothing":              {nil, 2, true, 0, api.Page{}},
		"complete":             {[]string{"a", "b"}, 2, true, 2, api.Page{}},
		"cut by its limit":     {[]string{"a", "b", "c"}, 2, true, 2, api.Page{More: true, Next: "1"}},
		"cut without a cursor": {[]string{"a", "b", "c"}, 2, false, 2, api.Page{More: true}},
		"cut by its size":      {[]string{large, large, large}, 3, true, 1, api.Page{More: true, Next: "400"}},
		"one entry too large":  {[]string{large + large}, 3, true, 1, api.Page{}},
	} {
		var key func(string) string
		if tt.keyed {
			key = func(s string) string { return strconv.Itoa(max(1, len(s)>>10)) }
		}
		got, page := api.CutPage(slices.Clone(tt.all), tt.limit, key)
		if len(got) != tt.want || page != tt.page || got == nil {
			t.Errorf("%s: got %d entries, %+v, want %d, %+v", name, len(got), page, tt.want, tt.page)
		}
	}
}
