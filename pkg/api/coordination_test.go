package api_test

import (
	"testing"

	"github.com/anima-run/anima/pkg/api"
)

func TestPredecessor(t *testing.T) {
	t.Parallel()
	self := api.OwnerName("folder", "now")
	for _, c := range []struct {
		self, owner string
		want        bool
	}{
		{self, api.OwnerName("folder", "before"), true},
		{self, self, false},
		{self, api.OwnerName("other", "before"), false},
		{self, api.OwnerName("", "before"), false},
		{api.OwnerName("", "now"), api.OwnerName("", "before"), false},
		{api.OwnerName("", "now"), api.OwnerName("folder", "before"), false},
	} {
		if got := api.Predecessor(c.self, c.owner); got != c.want {
			t.Errorf("Predecessor(%q, %q) = %t, want %t", c.self, c.owner, got, c.want)
		}
	}
}
