package conway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Size is a size of sandboxes with its price.
type Size struct {
	Name         string `json:"name"`
	VCPU         int64  `json:"vcpu"`
	MemoryMB     int64  `json:"memory_mb"`
	DiskGB       int64  `json:"disk_gb"`
	MonthlyCents int64  `json:"monthly_cents"`
}

// Sandbox is a rented sandbox.
type Sandbox struct {
	ID       string `json:"id"`
	Other    string `json:"sandbox_id"` // alias of ID
	Name     string `json:"name"`
	Status   string `json:"status"`
	VCPU     int64  `json:"vcpu"`
	MemoryMB int64  `json:"memory_mb"`
	DiskGB   int64  `json:"disk_gb"`
}

// Domain is a result of a search. Cents is the price of the first year.
type Domain struct {
	Domain    string
	Available bool
	Cents     int64 // 0: unknown
}

// Registration is a registered domain.
type Registration struct {
	Domain  string `json:"domain"`
	Status  string `json:"status"`
	Expires string `json:"expires_at"`
	Expiry  string `json:"expiry"` // alias of Expires
}

// Record is a DNS record.
type Record struct {
	ID    string
	Type  string
	Host  string
	Value string
	TTL   int64 // seconds
}

// Pricing returns the sizes of sandboxes.
func (c *Client) Pricing(ctx context.Context) ([]Size, error) {
	var a struct{ Tiers, Pricing []Size }
	err := c.do(ctx, call{method: http.MethodGet, route: "pricing", path: []string{"v1", "credits", "pricing"}}, &a)
	if a.Tiers == nil {
		a.Tiers = a.Pricing
	}
	return a.Tiers, err
}

// CreateSandbox rents a sandbox.
func (c *Client) CreateSandbox(ctx context.Context, key string, s Sandbox) (Sandbox, error) {
	body := map[string]any{"name": s.Name, "vcpu": s.VCPU, "memory_mb": s.MemoryMB, "disk_gb": s.DiskGB}
	var a Sandbox
	err := c.do(ctx, call{method: http.MethodPost, route: "create_sandbox", path: []string{"v1", "sandboxes"}, body: body, key: key}, &a)
	a.ID = cmp.Or(a.ID, a.Other)
	if err == nil && !idForm.MatchString(a.ID) {
		err = &Failure{Text: "the answer has no usable id", Unknown: true}
	}
	return a, err
}

// idForm is the form of the ids that are stored and shown to agents.
var idForm = regexp.MustCompile(`^[!-~]{1,200}$`)

// Sandboxes returns all sandboxes of the operator's account that have a usable id.
func (c *Client) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	var raw json.RawMessage
	if err := c.do(ctx, call{method: http.MethodGet, route: "list_sandboxes", path: []string{"v1", "sandboxes"}}, &raw); err != nil {
		return nil, err
	}
	var all []Sandbox
	if err := list(raw, &all, "sandboxes"); err != nil {
		return nil, err
	}
	for i := range all {
		all[i].ID = cmp.Or(all[i].ID, all[i].Other)
	}
	return slices.DeleteFunc(all, func(s Sandbox) bool { return !idForm.MatchString(s.ID) }), nil
}

// DeleteSandbox gives a sandbox back. One that does not exist is deleted already.
func (c *Client) DeleteSandbox(ctx context.Context, key, id string) error {
	return gone(c.do(ctx, call{method: http.MethodDelete, route: "delete_sandbox", path: []string{"v1", "sandboxes", escape(id)}, key: key}, nil))
}

// ExposePort makes a port of a sandbox reachable and returns its address.
func (c *Client) ExposePort(ctx context.Context, key, id string, port int64) (string, error) {
	var a struct {
		Public string `json:"public_url"`
		Camel  string `json:"publicUrl"`
		URL    string `json:"url"`
	}
	err := c.do(ctx, call{
		method: http.MethodPost, route: "expose_port", path: []string{"v1", "sandboxes", escape(id), "ports", "expose"},
		body: map[string]any{"port": port}, key: key,
	}, &a)
	return cmp.Or(a.Public, a.Camel, a.URL), err
}

// RemovePort makes a port unreachable. A port that is not exposed is removed already.
func (c *Client) RemovePort(ctx context.Context, key, id string, port int64) error {
	return gone(c.do(ctx, call{
		method: http.MethodDelete, route: "remove_port", path: []string{"v1", "sandboxes", escape(id), "ports", strconv.FormatInt(port, 10)}, key: key,
	}, nil))
}

// SearchDomains finds domains by a name or a word. tlds are separated by commas; "": all.
func (c *Client) SearchDomains(ctx context.Context, query, tlds string) ([]Domain, error) {
	q := url.Values{"query": {query}}
	if tlds != "" {
		q.Set("tlds", tlds)
	}
	type found struct {
		Domain       string `json:"domain"`
		Available    *bool  `json:"available"`
		Purchasable  bool   `json:"purchasable"`
		Registration *int64 `json:"registration_price"`
		Purchase     *int64 `json:"purchase_price"`
		Currency     string `json:"currency"`
	}
	var a struct{ Results, Domains []found }
	if err := c.do(ctx, call{method: http.MethodGet, route: "search_domains", path: []string{"v1", "domains", "search"}, query: q}, &a); err != nil {
		return nil, err
	}
	if a.Results == nil {
		a.Results = a.Domains
	}
	all := make([]Domain, 0, len(a.Results))
	for _, f := range a.Results {
		d := Domain{Domain: f.Domain, Available: f.Purchasable}
		if f.Available != nil {
			d.Available = *f.Available
		}
		for _, price := range []*int64{f.Purchase, f.Registration} {
			if price != nil && *price > 0 && (f.Currency == "" || strings.EqualFold(f.Currency, "usd")) {
				d.Cents = *price
			}
		}
		all = append(all, d)
	}
	return all, nil
}

// RegisterDomain buys a domain.
func (c *Client) RegisterDomain(ctx context.Context, key, domain string, years int64) (Registration, error) {
	var a Registration
	err := c.do(ctx, call{
		method: http.MethodPost, route: "register_domain", path: []string{"v1", "domains", "register"},
		body: map[string]any{"domain": domain, "years": years}, key: key,
	}, &a)
	a.Expires = shorten(cmp.Or(a.Expires, a.Expiry))
	return a, err
}

type record struct {
	ID     string `json:"id"`
	Other  string `json:"record_id"`
	Type   string `json:"type"`
	Host   string `json:"host"`
	Name   string `json:"name"`
	Value  string `json:"value"`
	Answer string `json:"answer"`
	TTL    int64  `json:"ttl"`
}

func (r record) plain() Record {
	return Record{ID: cmp.Or(r.ID, r.Other), Type: r.Type, Host: cmp.Or(r.Host, r.Name), Value: cmp.Or(r.Value, r.Answer), TTL: r.TTL}
}

// Records returns the DNS records of a domain.
func (c *Client) Records(ctx context.Context, domain string) ([]Record, error) {
	var raw json.RawMessage
	if err := c.do(ctx, call{method: http.MethodGet, route: "list_dns", path: []string{"v1", "domains", escape(domain), "dns"}}, &raw); err != nil {
		return nil, err
	}
	var all []record
	if err := list(raw, &all, "records"); err != nil {
		return nil, err
	}
	out := make([]Record, len(all))
	for i, r := range all {
		out[i] = r.plain()
	}
	return out, nil
}

// AddRecord adds a DNS record.
func (c *Client) AddRecord(ctx context.Context, key, domain string, r Record) (Record, error) {
	var a record
	err := c.do(ctx, call{
		method: http.MethodPost, route: "add_dns", path: []string{"v1", "domains", escape(domain), "dns"},
		body: map[string]any{"type": r.Type, "host": r.Host, "value": r.Value, "ttl": r.TTL}, key: key,
	}, &a)
	return a.plain(), err
}

// DeleteRecord deletes a DNS record. One that does not exist is deleted already.
func (c *Client) DeleteRecord(ctx context.Context, key, domain, id string) error {
	return gone(c.do(ctx, call{method: http.MethodDelete, route: "delete_dns", path: []string{"v1", "domains", escape(domain), "dns", escape(id)}, key: key}, nil))
}

// gone turns the answer that a thing does not exist into success.
func gone(err error) error {
	if f, ok := errors.AsType[*Failure](err); ok && f.Status == http.StatusNotFound {
		return nil
	}
	return err
}

// list decodes an array, or the array in a field of an object.
func list[T any](raw json.RawMessage, out *[]T, field string) error {
	if json.Unmarshal(raw, out) == nil {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return &Failure{Text: "the answer is neither a list nor an object"}
	}
	if fields[field] == nil {
		return &Failure{Text: "the answer has no " + field}
	}
	if err := json.Unmarshal(fields[field], out); err != nil {
		return &Failure{Text: "the answer is not a list of " + field}
	}
	return nil
}

// escape makes one segment of a path out of an id. Dots alone would be another path.
func escape(id string) string {
	if strings.Trim(id, ".") == "" {
		return url.PathEscape("%" + id)
	}
	return url.PathEscape(id)
}
