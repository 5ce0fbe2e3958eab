package router

import (
	"strings"
	"testing"
)

func TestOllamaURL(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"127.0.0.1:21434":       "http://127.0.0.1:21434/v1",
		"127.0.0.1":             "http://127.0.0.1:11434/v1",
		"0.0.0.0":               "http://127.0.0.1:11434/v1",
		":11435":                "http://127.0.0.1:11435/v1",
		"[::1]:11434":           "http://[::1]:11434/v1",
		"gpu":                   "http://gpu:11434/v1",
		"http://gpu":            "http://gpu:80/v1",
		"https://gpu.example/o": "https://gpu.example:443/o/v1",
		"ftp://gpu":             "",
		"ftp://me:secret@gpu":   "",
		"http://me:secret@g pu": "",
	} {
		got, err := ollamaURL(host)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", host, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error %q has the password", host, err)
		}
	}
}

func TestIsLocal(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]bool{
		"http://127.0.0.1:11434/v1": true, "http://localhost:1234/v1": true, "http://[::1]:8080/v1": true, "http://192.168.1.4/v1": true,
		"http://10.0.0.1/v1": true, "http://172.20.0.2/v1": true, "http://ollama:11434/v1": true, "http://vllm.ai.svc/v1": true, "http://mac.local/v1": true,
		"https://api.openai.com/v1": false, "https://openrouter.ai/api/v1": false, "http://8.8.8.8/v1": false, "http://127.0.0.1.example.com/v1": false, "": false,
	} {
		if got := isLocal(url); got != want {
			t.Errorf("%q: got %v, want %v", url, got, want)
		}
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	if got := redactURL("https://user:secret@host/v1?key=secret"); got != "https://host/v1" {
		t.Errorf("got %s", got)
	}
}
