package netpol

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"sync"
	"time"

	"github.com/anima-run/anima/test/internal/kube"
)

// settle is the time during which changes are collected before the rules are applied.
const settle = 20 * time.Millisecond

// Enforcer applies the network policies of the cluster on one node.
type Enforcer struct {
	node   string
	subnet netip.Prefix
	client *kube.Client
	log    *slog.Logger
	apply  func(ctx context.Context, rules string) error

	pods       *kube.Store[Pod]
	namespaces *kube.Store[Namespace]
	policies   *kube.Store[Policy]
	kick       chan struct{}

	mu       sync.Mutex
	attached map[string]Attachment // by container id
	applied  map[string]string     // address to pod key, of the rules in force
	round    chan struct{}         // closed and replaced after each application
}

// Attachment is the assignment of an address to a sandbox.
type Attachment struct {
	Container string // id of the sandbox
	Namespace string
	Name      string
	IP        string
}

// New returns an enforcer for the pods of node, whose addresses are in subnet. It must
// run in the node's network namespace.
func New(node string, subnet netip.Prefix, c *kube.Client, log *slog.Logger) *Enforcer {
	e := &Enforcer{
		node: node, subnet: subnet, client: c, log: log, apply: nft,
		kick: make(chan struct{}, 1), attached: map[string]Attachment{}, applied: map[string]string{}, round: make(chan struct{}),
	}
	e.pods = kube.NewStore[Pod](e.changed)
	e.namespaces = kube.NewStore[Namespace](e.changed)
	e.policies = kube.NewStore[Policy](e.changed)
	return e
}

// Run enforces the policies until ctx ends. From its start until the state of the cluster
// is known, all packets of pods are dropped.
func (e *Enforcer) Run(ctx context.Context) error {
	if err := e.apply(ctx, Rules(State{Node: e.node, Subnet: e.subnet})); err != nil {
		return err
	}
	failed := func(err error) { e.log.Warn("following the cluster", "error", err) }
	var wg sync.WaitGroup
	wg.Go(func() { e.pods.Follow(ctx, e.client, "/api/v1/pods", failed) })
	wg.Go(func() { e.namespaces.Follow(ctx, e.client, "/api/v1/namespaces", failed) })
	wg.Go(func() { e.policies.Follow(ctx, e.client, "/apis/networking.k8s.io/v1/networkpolicies", failed) })
	defer wg.Wait()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-e.kick:
		}
		// Changes come in bursts; a short delay avoids many runs of nft.
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(settle):
		}
		s, ok := e.state()
		if !ok {
			continue
		}
		if rules := Rules(s); rules != last {
			start := time.Now()
			if err := e.apply(ctx, rules); err != nil {
				e.log.Error("rules not applied, trying again", "error", err)
				time.AfterFunc(time.Second, e.changed)
				continue
			}
			last = rules
			e.log.Info("rules applied", "pods", len(s.Pods), "policies", len(s.Policies), "took", time.Since(start).String())
		}
		e.done(s)
	}
}

// Attach applies the rules of a pod's new address and returns when they are in force. It
// fails if ctx ends before; the pod must not start then.
func (e *Enforcer) Attach(ctx context.Context, a Attachment) error {
	if ip, err := netip.ParseAddr(a.IP); err != nil || !e.subnet.Contains(ip) {
		return fmt.Errorf("address %q is not in %s", a.IP, e.subnet)
	}
	e.mu.Lock()
	e.attached[a.Container] = a
	e.mu.Unlock()
	e.changed()
	for {
		e.mu.Lock()
		round, ok := e.round, e.applied[a.IP] == a.Namespace+"/"+a.Name
		e.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-round:
		case <-ctx.Done():
			e.Detach(a.Container)
			return errors.New("the rules of pod " + a.Namespace + "/" + a.Name + " are not in force yet")
		}
	}
}

// Detach removes the sandbox.
func (e *Enforcer) Detach(container string) {
	e.mu.Lock()
	delete(e.attached, container)
	e.mu.Unlock()
	e.changed()
}

func (e *Enforcer) changed() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// state returns the known state of the cluster. For the node's own pods it uses the
// attached addresses, because those in the API are updated later and may be of a previous
// sandbox.
func (e *Enforcer) state() (State, bool) {
	pods, ok1 := e.pods.Items()
	namespaces, ok2 := e.namespaces.Items()
	policies, ok3 := e.policies.Items()
	if !ok1 || !ok2 || !ok3 {
		return State{}, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	local := map[string]string{}
	for _, a := range e.attached {
		local[a.Namespace+"/"+a.Name] = a.IP
	}
	for i := range pods {
		if pods[i].Spec.NodeName == e.node && !pods[i].Spec.HostNetwork {
			pods[i].Status.PodIP = local[pods[i].Key()]
		}
	}
	return State{Node: e.node, Subnet: e.subnet, Pods: pods, Namespaces: namespaces, Policies: policies}, true
}

// done records the rules in force and wakes up waiting calls of Attach.
func (e *Enforcer) done(s State) {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.applied)
	for _, p := range s.Pods {
		if p.Spec.NodeName == e.node && p.Status.PodIP != "" {
			e.applied[p.Status.PodIP] = p.Key()
		}
	}
	close(e.round)
	e.round = make(chan struct{})
}

func nft(ctx context.Context, rules string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, "nft", "-f", "-")
	c.Stdin = bytes.NewBufferString(rules)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %.400s", err, out)
	}
	return nil
}
