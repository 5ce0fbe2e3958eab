package treasury

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/executor"

	"github.com/anima-run/anima/services/treasury/internal/conway"
	"github.com/anima-run/anima/services/treasury/internal/orders"
)

// maxResults is the most results of a search that an agent gets.
const maxResults = 30

func (o *outside) searchDomains(ctx context.Context, c executor.Call) (string, error) {
	found, err := o.client.SearchDomains(ctx, c.Args.String("query"), c.Args.String("tlds"))
	if err != nil {
		return "", conway.Explain(err)
	}
	var out strings.Builder
	for _, d := range found[:min(len(found), maxResults)] {
		switch {
		case !d.Available:
			fmt.Fprintf(&out, "%s: taken\n", d.Domain)
		case validPrice(d.Cents):
			fmt.Fprintf(&out, "%s: available, %s a year\n", d.Domain, api.Micros(d.Cents)*api.Cent)
		default:
			fmt.Fprintf(&out, "%s: available, price unknown\n", d.Domain)
		}
	}
	if out.Len() == 0 {
		return "no domains were found", nil
	}
	return strings.TrimSpace(out.String()), nil
}

var domainForm = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}$`)

func domainOf(s string) (string, error) {
	s = strings.TrimSuffix(strings.ToLower(strings.TrimSpace(s)), ".")
	if len(s) > 253 || !domainForm.MatchString(s) {
		return "", &api.Error{Code: api.Invalid, Message: fmt.Sprintf("%.60q is not a domain", s), Next: "write it as in example.com"}
	}
	return s, nil
}

// registerDomain buys a domain at the price of the search, which is held and paid by the
// agent. A price that is not known is not paid.
func (o *outside) registerDomain(ctx context.Context, c executor.Call) (string, error) {
	domain, err := domainOf(c.Args.String("domain"))
	if err != nil {
		return "", err
	}
	r := domainOrder{Domain: domain, Years: c.Args.Int("years", 1)}
	return o.place(ctx, c, orders.Domain, r, func() (api.Micros, error) {
		found, err := o.client.SearchDomains(ctx, domain, "")
		if err != nil {
			return 0, conway.Explain(err)
		}
		for _, d := range found {
			if strings.EqualFold(d.Domain, domain) && d.Available && validPrice(d.Cents) {
				return api.Micros(d.Cents*r.Years) * api.Cent, nil
			}
		}
		return 0, &api.Error{Code: api.Invalid, Message: domain + " is taken or has no price", Next: "search_domains lists domains with prices"}
	})
}

// manageDNS lists, adds or deletes records of a domain that the agent has registered.
func (o *outside) manageDNS(ctx context.Context, c executor.Call) (string, error) {
	domain, err := domainOf(c.Args.String("domain"))
	if err != nil {
		return "", err
	}
	if _, err := o.own(ctx, c.Agent, orders.Domain, domain); err != nil {
		return "", err
	}
	switch c.Args.String("action") {
	case "add":
		return o.addRecord(ctx, c, domain)
	case "delete":
		id := c.Args.String("record_id")
		if id == "" {
			return "", api.Errorf(api.Invalid, "argument record_id is missing; list the records first")
		}
		if err := o.client.DeleteRecord(ctx, c.Key, domain, id); err != nil {
			return "", conway.Explain(err)
		}
		return "deleted the record " + id, nil
	}
	records, err := o.client.Records(ctx, domain)
	if err != nil {
		return "", conway.Explain(err)
	}
	var out strings.Builder
	for _, r := range records {
		fmt.Fprintf(&out, "%s: %s %s %s, ttl %d\n", r.ID, r.Type, r.Host, r.Value, r.TTL)
	}
	if out.Len() == 0 {
		return domain + " has no records", nil
	}
	return strings.TrimSpace(out.String()), nil
}

func (o *outside) addRecord(ctx context.Context, c executor.Call, domain string) (string, error) {
	r := conway.Record{Type: strings.ToUpper(c.Args.String("type")), Host: c.Args.String("host"), Value: c.Args.String("value"), TTL: c.Args.Int("ttl", 3600)}
	if r.Type == "" || r.Host == "" || r.Value == "" {
		return "", api.Errorf(api.Invalid, "a record needs the arguments type, host and value")
	}
	added, err := o.client.AddRecord(ctx, c.Key, domain, r)
	if err != nil {
		return "", conway.Explain(err)
	}
	return fmt.Sprintf("added the record %s: %s %s %s", added.ID, r.Type, r.Host, r.Value), nil
}
