package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/disk"
)

type statusCmd struct {
	watching
}

// statusView is the output of status. Faults lists the requests that failed.
type statusView struct {
	NATS     string            `json:"nats"`
	Context  string            `json:"context,omitempty"`
	Services []serviceState    `json:"services"`
	Agents   []agentLine       `json:"agents"`
	More     bool              `json:"more,omitempty"` // more agents exist than are listed
	Money    moneyView         `json:"money"`
	Models   []api.Model       `json:"models"`
	Streams  []bus.StreamState `json:"streams"`
	Disk     *diskView         `json:"disk,omitempty"` // of the data folder; nil: it is on another machine
	Faults   []string          `json:"faults,omitempty"`
}

// diskView is the disk of the data folder, in bytes.
type diskView struct {
	Folder string `json:"folder"`
	Free   int64  `json:"free"`
	Total  int64  `json:"total"`
}

// addDisk adds the state of the disk for an anima on this machine.
func (s *statusView) addDisk(a *app) {
	dir, err := a.dataDir()
	if err != nil {
		return // the connection was read from it before
	}
	space, err := disk.Of(dir)
	if err != nil {
		s.Faults = append(s.Faults, "disk: "+err.Error())
		return
	}
	s.Disk = &diskView{Folder: dir, Free: space.Free, Total: space.Total}
}

type serviceState struct {
	Name     string `json:"name"`
	Replicas int    `json:"replicas"`
	Version  string `json:"version,omitempty"`
}

type agentLine struct {
	ID         string         `json:"id"`
	State      api.AgentState `json:"state"`
	Reason     string         `json:"reason,omitempty"`
	SleepUntil int64          `json:"sleepUntil,omitempty"`
	Balance    *api.Balance   `json:"balance,omitempty"`
}

// moneyView is the sum of the balances of the listed agents.
type moneyView struct {
	Available api.Micros `json:"available"`
	Held      api.Micros `json:"held"`
	Holds     int        `json:"holds"`
	MoreHolds bool       `json:"moreHolds,omitempty"` // more may exist than are counted
}

// statusHolds is the maximum number of counted holds: the largest page of them.
const statusHolds = 250

// statusAgents is the maximum number of listed agents: each costs one request for its
// balance.
const statusAgents = 50

func (c statusCmd) Run(ctx context.Context, a *app) error {
	d, named, err := a.dialing()
	if err != nil {
		return err
	}
	b, err := a.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	s := collectStatus(ctx, b)
	s.NATS = bus.RedactURL(d.URL)
	if !named { // anima runs on this machine, on the data folder
		s.addDisk(a)
	}
	if s.Context, _, err = a.selectedContext(); err != nil {
		return err
	}
	err = a.print(s, func(w io.Writer) {
		s.text(w)
		if s.More {
			fmt.Fprintln(w, a.named("… more: anima agent list"))
		}
	})
	if err != nil {
		return err
	}
	if c.Watch {
		return nil
	}
	for _, v := range s.Services {
		if v.Replicas == 0 {
			return failure(api.Unavailable, v.Name+" does not answer", "read its log; anima status --watch shows when it answers again")
		}
	}
	return nil
}

// collectStatus sends requests to all services concurrently, so that a service without an
// answer does not delay the others.
func collectStatus(ctx context.Context, b *bus.Bus) *statusView {
	s := &statusView{Agents: []agentLine{}, Models: []api.Model{}, Streams: []bus.StreamState{}}
	var mu sync.Mutex
	var all sync.WaitGroup
	part := func(name string, ask func() error) {
		all.Go(func() {
			if err := ask(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				s.Faults = append(s.Faults, name+": "+api.Wire(err).Message)
			}
		})
	}
	var replicas []bus.Replica
	part("services", func() (err error) { replicas, err = b.Replicas(ctx); return err })
	part("queues", func() (err error) { s.Streams, err = b.States(ctx); return err })
	part("models", func() error {
		v, err := bus.Call[api.Models](ctx, b, api.ListModels{})
		if v.Models != nil {
			s.Models = v.Models
		}
		return err
	})
	part("holds", func() error {
		v, err := bus.Call[api.Holds](ctx, b, api.ListHolds{Limit: statusHolds})
		s.Money.Holds, s.Money.MoreHolds = len(v.Holds), len(v.Holds) >= statusHolds
		return err
	})
	part("agents", func() error { return s.askAgents(ctx, b) })
	all.Wait()
	slices.Sort(s.Faults)
	for _, o := range api.Owners() {
		v := serviceState{Name: o.Service()}
		for _, r := range replicas {
			if r.Service == v.Name {
				v.Replicas, v.Version = v.Replicas+1, r.Version
			}
		}
		s.Services = append(s.Services, v)
	}
	return s
}

// askAgents requests the agents and the balance of each.
func (s *statusView) askAgents(ctx context.Context, b *bus.Bus) error {
	v, err := bus.Call[api.Agents](ctx, b, api.ListAgents{Limit: statusAgents})
	if err != nil {
		return err
	}
	s.More = v.More
	for _, g := range v.Agents {
		l := agentLine{ID: g.ID, State: g.State, Reason: g.Reason, SleepUntil: g.SleepUntil}
		if err == nil { // after a failure, treasury is not asked again
			var money api.Balance
			if money, err = bus.Call[api.Balance](ctx, b, api.GetBalance{Agent: g.ID}); err == nil {
				l.Balance = &money
				s.Money.Available += money.Available
				s.Money.Held += money.Held
			}
		}
		s.Agents = append(s.Agents, l)
	}
	return err
}

func (s *statusView) text(w io.Writer) {
	var up, down, usable, queues []string
	for _, v := range s.Services {
		switch v.Replicas {
		case 0:
			down = append(down, v.Name)
		case 1:
			up = append(up, v.Name)
		default:
			up = append(up, fmt.Sprintf("%s ×%d", v.Name, v.Replicas))
		}
	}
	for _, m := range s.Models {
		if m.Usable {
			usable = append(usable, m.ID)
		}
	}
	var bytes uint64
	for _, q := range s.Streams {
		bytes += q.Bytes
		if q.Work {
			queues = append(queues, fmt.Sprintf("%s %d", q.Name, q.Messages))
		}
	}
	list := func(names []string) string { return cmp.Or(strings.Join(names, ", "), "-") }
	fields(w, "nats", plain(s.NATS), "context", s.Context, "services", list(up), "no answer", strings.Join(down, ", "))
	fmt.Fprintf(w, "models\t%d of %d usable: %s\n", len(usable), len(s.Models), line(list(usable), 120))
	more := ""
	if s.Money.MoreHolds {
		more = " or more"
	}
	part := ""
	if s.More {
		part = fmt.Sprintf("; the amounts are those of the first %d agents", len(s.Agents))
	}
	fmt.Fprintf(w, "money\t%s available, %s held by %d%s calls%s\n", s.Money.Available, s.Money.Held, s.Money.Holds, more, part)
	fmt.Fprintf(w, "queues\t%s\nstreams\t%.1f MiB\n", list(queues), float64(bytes)/(1<<20))
	if s.Disk != nil {
		fmt.Fprintf(w, "disk\t%.1f of %.1f GiB free for %s\n", float64(s.Disk.Free)/(1<<30), float64(s.Disk.Total)/(1<<30), plain(s.Disk.Folder))
	}
	for _, f := range s.Faults {
		row(w, "fault", line(f, 200))
	}
	table(w, "\nAGENT\tSTATE\tAVAILABLE\tUNTIL\tWHY", s.Agents, api.Page{}, func(g agentLine) []any {
		money := "unknown"
		if g.Balance != nil {
			money = g.Balance.Available.String()
		}
		return []any{g.ID, g.State, money, when(g.SleepUntil), line(g.Reason, 60)}
	})
}
