package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
)

// provider is the model provider that anima init stored in the data folder for anima up.
// A provider of the environment takes precedence: see [storedProvider].
type provider struct {
	URL string `json:"baseUrl"`
	Key string `json:"key,omitempty"` // never printed

	models int // number of its models; 0: not tested
}

const (
	providerFile = "provider.json"
	openaiURL    = "https://api.openai.com/v1"
	simulated    = "simulated"
)

// storedProvider returns the settings of the data folder's provider. It returns none if
// the environment configures a provider, so that the stored key is never sent to another
// address.
func storedProvider(environment config.Lookup, dir string) (config.Lookup, error) {
	set := map[string]string{}
	if len(providers(environment)) > 0 {
		return lookupIn(set), nil
	}
	p, err := readProvider(dir)
	if p.URL != "" {
		set["OPENAI_BASE_URL"] = p.URL
	}
	if p.Key != "" {
		set["OPENAI_API_KEY"] = p.Key
	}
	return lookupIn(set), err
}

// unusedProvider returns a warning if the data folder has a provider and the environment
// configures another one, whose calls may cost money.
func unusedProvider(environment config.Lookup, dir string) []string {
	set := providers(environment)
	if _, err := os.Stat(filepath.Join(dir, providerFile)); err != nil || len(set) == 0 {
		return nil
	}
	return []string{"the model service that anima init stored is not used, because the environment has " + strings.Join(set, ", ")}
}

// readProvider reads the data folder's provider; the zero value means none.
func readProvider(dir string) (p provider, err error) {
	file := filepath.Join(dir, providerFile)
	data, exposed, err := readPrivate(file)
	switch {
	case exposed:
		return p, failure(api.Invalid, file+" holds a key and can be read by others", "chmod 600 "+shellQuote(file))
	case err != nil:
		return p, notWritable(err)
	case data == nil:
		return p, nil
	}
	if json.Unmarshal(data, &p) != nil || p.URL == "" { // the decoder's error could contain the key
		return provider{}, failure(api.Invalid, file+" is not in the format of anima init", "remove it, or write it again with anima init --force")
	}
	return p, nil
}

// storedHere returns the stored provider of the app's data folder.
func (a *app) storedHere() (provider, error) {
	dir, err := a.dataDir()
	if err != nil {
		return provider{}, err
	}
	return readProvider(dir)
}

// storeProvider writes the provider to the data folder; the zero value removes the file.
func storeProvider(dir string, p provider) error {
	file := filepath.Join(dir, providerFile)
	var err error
	if p.URL != "" {
		err = writePrivate(file, p)
	} else if err = os.Remove(file); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return notWritable(err)
	}
	return nil
}

// providerURL returns the base URL that an answer or flag means; "" is the simulated
// model.
func providerURL(text string) (string, error) {
	switch text = strings.TrimRight(strings.TrimSpace(text), "/"); text {
	case "", simulated:
		return "", nil
	case "openai":
		return openaiURL, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return "", failure(api.Invalid, "that is not the address of a model service",
			"give one such as http://127.0.0.1:11434/v1, or openai, or simulated; the key is given separately")
	}
	return text, nil
}

// probeTimeout is the timeout of the test of a provider.
const probeTimeout = 10 * time.Second

// probe requests the list of models from the provider and returns their number. The error
// is written for the user and does not contain the key.
func (p provider) probe(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/models", nil)
	if err != nil {
		return 0, api.Errorf(api.Invalid, "that is not the address of a model service")
	}
	if p.Key != "" {
		req.Header.Set("Authorization", "Bearer "+p.Key)
	}
	// As in the router, the key is not sent to the target of a redirect.
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		return 0, p.unreachable(err)
	}
	defer func() { _ = res.Body.Close() }() // read only: a Close error loses no data
	body, err := io.ReadAll(io.LimitReader(res.Body, 8<<20))
	if err != nil {
		return 0, p.unreachable(err)
	}
	if res.StatusCode != http.StatusOK {
		return 0, p.refused(res.StatusCode)
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil || list.Data == nil {
		return 0, failure(api.Invalid, p.URL+"/models answers, but not with a list of models", "check the address: most end in /v1")
	}
	return len(list.Data), nil
}

func (p provider) unreachable(err error) error {
	why := "the connection failed"
	if op, ok := errors.AsType[*net.OpError](err); ok {
		why = op.Err.Error()
	}
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		why = "there is no host of that name"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		why = "no answer within " + probeTimeout.String()
	}
	return failure(api.Unavailable, p.URL+" cannot be reached: "+why, "check the address, and that the service is running")
}

func (p provider) refused(status int) error {
	code, next := api.Unavailable, "try again later"
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		code, next = api.Denied, "check the key"
		if p.Key == "" {
			next = "give a key: the service requires one"
		}
	case status == http.StatusNotFound:
		code, next = api.Invalid, "check the address: most end in /v1"
	case status >= 300 && status < 400:
		code, next = api.Invalid, "give the address that it redirects to: redirects are not followed"
	}
	return failure(code, fmt.Sprintf("%s/models answers %d %s", p.URL, status, http.StatusText(status)), next)
}
