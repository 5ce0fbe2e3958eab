package netpol

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

// Plugin is the name of the CNI plugin. It must follow the plugin that assigns addresses,
// and delays the start of a pod until the pod's rules are in force.
const Plugin = "anima-netpol"

// patience is the maximum delay of a pod's start. After it the plugin fails and kubelet
// retries.
const patience = 10 * time.Second

// Serve answers requests of the plugin on a unix socket until ctx ends.
func (e *Enforcer) Serve(ctx context.Context, socket string) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /attach", func(w http.ResponseWriter, r *http.Request) {
		var a Attachment
		if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), patience)
		defer cancel()
		if err := e.Attach(ctx, a); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("POST /detach", func(_ http.ResponseWriter, r *http.Request) {
		var a Attachment
		if json.NewDecoder(r.Body).Decode(&a) == nil {
			e.Detach(a.Container)
		}
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: patience}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// RunPlugin executes one call of the plugin by the protocol of CNI: the command in
// variables, the configuration on in, the result on out. It returns the exit status.
func RunPlugin(ctx context.Context, socket string, getenv func(string) string, in io.Reader, out io.Writer) int {
	result, err := plugin(ctx, socket, getenv, in)
	if err != nil {
		// Code 11 means that the runtime should retry later.
		result, _ = json.Marshal(map[string]any{"cniVersion": "1.0.0", "code": 11, "msg": err.Error()})
	}
	_, _ = out.Write(result)
	if err != nil {
		return 1
	}
	return 0
}

func plugin(ctx context.Context, socket string, getenv func(string) string, in io.Reader) ([]byte, error) {
	command := getenv("CNI_COMMAND")
	if command == "VERSION" {
		return []byte(`{"cniVersion":"1.0.0","supportedVersions":["0.4.0","1.0.0"]}`), nil
	}
	var conf struct {
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.NewDecoder(in).Decode(&conf); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	a := Attachment{Container: getenv("CNI_CONTAINERID")}
	for arg := range strings.SplitSeq(getenv("CNI_ARGS"), ";") {
		switch k, v, _ := strings.Cut(arg, "="); k {
		case "K8S_POD_NAMESPACE":
			a.Namespace = v
		case "K8S_POD_NAME":
			a.Name = v
		}
	}
	switch command {
	case "ADD":
		var prev struct {
			IPs []struct {
				Address string `json:"address"`
			} `json:"ips"`
		}
		if err := json.Unmarshal(conf.PrevResult, &prev); err != nil || len(prev.IPs) == 0 {
			return nil, errors.New("no plugin before this one gave an address")
		}
		a.IP, _, _ = strings.Cut(prev.IPs[0].Address, "/")
		return conf.PrevResult, post(ctx, socket, "/attach", a)
	case "DEL":
		// After a restart of the node there is nothing to detach, which is not an error.
		if err := post(ctx, socket, "/detach", a); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		return nil, nil
	default:
		return nil, nil
	}
}

func post(ctx context.Context, socket, path string, a Attachment) error {
	c := http.Client{Timeout: 2 * patience, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	body, err := json.Marshal(a)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://enforcer"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 300))
		return fmt.Errorf("network policies: %s", strings.TrimSpace(string(text)))
	}
	return nil
}
