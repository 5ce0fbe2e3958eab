package treasury

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/executor"

	"github.com/anima-run/anima/services/treasury/internal/conway"
	"github.com/anima-run/anima/services/treasury/internal/orders"
)

// outsideTools are the tools of [outside].
var outsideTools = []string{
	"create_sandbox", "list_sandboxes", "delete_sandbox", "expose_port", "remove_port", "search_domains", "register_domain", "manage_dns",
}

// absent returns the tools that are not executed without a provider.
func (o *outside) absent() map[string]error {
	if o.client != nil {
		return nil
	}
	all := map[string]error{}
	for _, name := range outsideTools {
		all[name] = &api.Error{
			Code: api.Denied, Message: name + " needs a provider of sandboxes and domains, and none is configured",
			Next: "the operator can set ANIMA_TREASURY_CONWAY_URL and ANIMA_TREASURY_CONWAY_KEY",
		}
	}
	return all
}

func (o *outside) tools() map[string]executor.Func {
	if o.client == nil {
		return nil
	}
	return map[string]executor.Func{
		"create_sandbox": o.createSandbox, "list_sandboxes": o.listSandboxes, "delete_sandbox": o.deleteSandbox,
		"expose_port": o.exposePort, "remove_port": o.removePort,
		"search_domains": o.searchDomains, "register_domain": o.registerDomain, "manage_dns": o.manageDNS,
	}
}

// createSandbox rents the cheapest size that suffices. Its price for a month is held and
// paid by the agent; renewals are paid by the operator.
func (o *outside) createSandbox(ctx context.Context, c executor.Call) (string, error) {
	r := sandboxOrder{VCPU: c.Args.Int("vcpu", 1), MemoryMB: c.Args.Int("memory_mb", 512), DiskGB: c.Args.Int("disk_gb", 5)}
	sum := sha256.Sum256([]byte(c.Key))
	r.Name = sandboxName(cmp.Or(c.Args.String("name"), c.Agent)) + "-" + hex.EncodeToString(sum[:4])
	return o.place(ctx, c, orders.Sandbox, r, func() (api.Micros, error) {
		sizes, err := o.client.Pricing(ctx)
		if err != nil {
			return 0, conway.Explain(err)
		}
		price := int64(0)
		for _, s := range sizes {
			if s.VCPU >= r.VCPU && s.MemoryMB >= r.MemoryMB && s.DiskGB >= r.DiskGB && validPrice(s.MonthlyCents) && (price == 0 || s.MonthlyCents < price) {
				price = s.MonthlyCents
			}
		}
		if price == 0 {
			return 0, api.Errorf(api.Invalid, "no size with a price has %d vCPU, %d MB of memory and %d GB of disk", r.VCPU, r.MemoryMB, r.DiskGB)
		}
		return api.Micros(price) * api.Cent, nil
	})
}

// maxPrice is the largest price of one order, in cents. A larger one is an error of the
// provider.
const maxPrice = 10_000_000

func validPrice(cents int64) bool { return cents > 0 && cents <= maxPrice }

// place makes the order of a call. A repeated call continues the stored order at its
// price; only a new one asks for the price.
func (o *outside) place(ctx context.Context, c executor.Call, kind orders.Kind, request any, price func() (api.Micros, error)) (string, error) {
	text, err := json.Marshal(request)
	if err != nil {
		return "", err
	}
	stored, ok, err := o.store.Order(ctx, c.Key)
	if err != nil {
		return "", err
	}
	if !ok {
		if stored.Price, err = price(); err != nil {
			return "", err
		}
	}
	return o.order(ctx, orders.Order{ID: c.Key, Agent: c.Agent, Session: c.Session, Turn: c.Turn, By: c.By.Kind, Kind: kind, Request: string(text), Price: stored.Price})
}

var nameChars = regexp.MustCompile(`[^a-zA-Z0-9-]+`)

func sandboxName(s string) string {
	s = strings.Trim(nameChars.ReplaceAllString(s, "-"), "-")
	return cmp.Or(s[:min(len(s), 40)], "sandbox")
}

func (o *outside) listSandboxes(ctx context.Context, c executor.Call) (string, error) {
	own, err := o.store.Things(ctx, c.Agent, orders.Sandbox)
	if err != nil || len(own) == 0 {
		return "you rent no sandboxes", err
	}
	all, err := o.client.Sandboxes(ctx)
	if err != nil {
		return "", conway.Explain(err)
	}
	var out strings.Builder
	for _, t := range own {
		status := "unknown to the provider"
		if i := slices.IndexFunc(all, func(s conway.Sandbox) bool { return s.ID == t.ID }); i >= 0 {
			status = fmt.Sprintf("%s, %d vCPU, %d MB, %d GB", all[i].Status, all[i].VCPU, all[i].MemoryMB, all[i].DiskGB)
		}
		fmt.Fprintf(&out, "%s (%s): %s\n", t.ID, t.Name, status)
	}
	return strings.TrimSpace(out.String()), nil
}

// deleteSandbox gives a sandbox back. A repeated call after a crash finds it deleted, or
// returned by its agent.
func (o *outside) deleteSandbox(ctx context.Context, c executor.Call) (string, error) {
	id := c.Args.String("sandbox_id")
	done := "gave the sandbox " + id + " back"
	if _, err := o.own(ctx, c.Agent, orders.Sandbox, id); err != nil {
		if gone, ok, failed := o.store.Thing(ctx, orders.Returned, id); failed == nil && ok && gone.Agent == c.Agent {
			return done, nil
		}
		return "", err
	}
	if err := o.client.DeleteSandbox(ctx, c.Key, id); err != nil {
		return "", conway.Explain(err)
	}
	return done, o.store.ReturnSandbox(ctx, id)
}

// own returns a thing of an agent: the one with an id or, if id is "", its only one. The
// account of the operator has the things of all agents.
func (o *outside) own(ctx context.Context, agent string, kind orders.Kind, id string) (orders.Thing, error) {
	all, err := o.store.Things(ctx, agent, kind)
	if err != nil {
		return orders.Thing{}, err
	}
	if id == "" && len(all) == 1 {
		return all[0], nil
	}
	if i := slices.IndexFunc(all, func(t orders.Thing) bool { return t.ID == id }); i >= 0 {
		return all[i], nil
	}
	names := make([]string, len(all))
	for i, t := range all {
		names[i] = t.ID
	}
	return orders.Thing{}, &api.Error{
		Code: api.Invalid, Message: fmt.Sprintf("you have no %s %.60q", kind, id), Next: "yours are: " + cmp.Or(strings.Join(names, ", "), "none"),
	}
}

func (o *outside) exposePort(ctx context.Context, c executor.Call) (string, error) {
	box, err := o.own(ctx, c.Agent, orders.Sandbox, c.Args.String("sandbox_id"))
	if err != nil {
		return "", err
	}
	port := c.Args.Int("port", 0)
	address, err := o.client.ExposePort(ctx, c.Key, box.ID, port)
	if err != nil {
		return "", conway.Explain(err)
	}
	return fmt.Sprintf("port %d of %s is reachable at %s", port, box.ID, address), nil
}

func (o *outside) removePort(ctx context.Context, c executor.Call) (string, error) {
	box, err := o.own(ctx, c.Agent, orders.Sandbox, c.Args.String("sandbox_id"))
	if err != nil {
		return "", err
	}
	port := c.Args.Int("port", 0)
	if err := o.client.RemovePort(ctx, c.Key, box.ID, port); err != nil {
		return "", conway.Explain(err)
	}
	return fmt.Sprintf("port %d of %s is not reachable any more", port, box.ID), nil
}
