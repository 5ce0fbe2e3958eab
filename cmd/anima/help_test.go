package main

import (
	"io"
	"strings"
	"testing"
)

// TestDetails checks that each text of details belongs to a command and is printed, and that
// the help of each command has examples.
func TestDetails(t *testing.T) {
	t.Parallel()
	texts := details()
	for _, leaf := range newMachine(t).app(nil, io.Discard, io.Discard).parser(t.Context(), func(int) {}).Model.Leaves(false) {
		if want := texts[leaf.Path()]; want != "" && leaf.Detail != want {
			t.Errorf("%s: got the text %q, want %q", leaf.Path(), leaf.Detail, want)
		}
		if !strings.Contains(leaf.Detail, "Examples:\n") {
			t.Errorf("%s: the help has no examples", leaf.Path())
		}
		delete(texts, leaf.Path())
	}
	for path := range texts {
		t.Errorf("there is no command %q", path)
	}
}
