package router

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/anima-run/anima/pkg/config"
)

func TestOtherProviders(t *testing.T) {
	t.Parallel()
	got, err := parseOthers([]string{"groq=chat:https://api.groq.com/openai/v1", " mine=raw-responses:http://127.0.0.1:9/v1", "other=anthropic:https://host"}, "groq=k=1, other=k2")
	if err != nil {
		t.Fatal(err)
	}
	want := []endpoint{
		{name: "groq", url: "https://api.groq.com/openai/v1", key: "k=1", kind: apiChat},
		{name: "mine", url: "http://127.0.0.1:9/v1", kind: apiResponses, raw: true},
		{name: "other", url: "https://host", key: "k2", kind: apiAnthropic},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(endpoint{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for want, c := range map[string]struct {
		list []string
		keys config.Secret
	}{
		"item 2 is not name=kind:url":   {[]string{"a=chat:https://h", "b=https"}, ""},
		`name "openai" of item 1`:       {[]string{"openai=chat:https://h"}, ""},
		`name "a" of item 2`:            {[]string{"a=chat:https://h", "a=chat:https://h"}, ""},
		`name "a b" of item 1`:          {[]string{"a b=chat:https://h"}, ""},
		`kind "raw-anthropic" of a`:     {[]string{"a=raw-anthropic:https://h"}, ""},
		`kind "https" of a`:             {[]string{"a=https://me:secret@h"}, ""},
		"a key without the name of one": {[]string{"a=chat:https://h"}, "secret"},
		"without the name":              {[]string{"a=chat:https://h"}, "b=secret"},
	} {
		if _, err := parseOthers(c.list, c.keys); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: got %v, want %q without the secret", c.list, err, want)
		}
	}
}
