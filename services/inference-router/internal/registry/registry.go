// Package registry has the rows of the stored registry of models and the rules by which
// they change: what a release, the list of a provider and the operator may change of which
// rows (docs/reference/inference-router.md, Registry).
//
// Its functions are pure: they plan changes of a state, and the caller stores them. It must
// not choose models for calls.
package registry

import (
	"slices"

	"github.com/anima-run/anima/pkg/api"

	"github.com/anima-run/anima/services/inference-router/internal/model"
)

// Row is a model of one life cycle. Times are Unix microseconds.
type Row struct {
	Provider, ID  string
	Lifecycle     api.Lifecycle
	URL           string // of the list that has the model, without secrets; "" for other life cycles
	ContextWindow int64  // tokens; 0: unknown
	MaxOutput     int64  // tokens; 0: unknown
	Tools         bool
	Vision        bool // it sees images
	TokenParam    model.TokenParam
	TierMinimum   api.Tier
	Fallback      bool
	NotChat       bool   // it is not made for conversations
	Remote        string // host on which a local provider runs the model
	CreatedAt     int64
	VanishedAt    int64 // its list had it no more at this time; 0: the list has it
}

// Key identifies a model at a provider.
type Key struct{ Provider, ID string }

// Key returns the key of the row's model.
func (r Row) Key() Key { return Key{r.Provider, r.ID} }

// same reports whether two rows differ at most in the time of their creation.
func (r Row) same(other Row) bool {
	r.CreatedAt = other.CreatedAt
	return r == other
}

// Price is a version of the prices of a model. Lifecycle and URL say who has set it.
type Price struct {
	Provider, ID string
	Version      int64 // given by the store
	Lifecycle    api.Lifecycle
	URL          string
	Prices       api.Prices
	From         int64 // it applies from then on
	At           int64 // time of its storage
	Withdrawn    int64 // 0: it is not withdrawn
}

// ListState says what is known of the list of a provider. The zero value is a list that
// was not read yet.
type ListState string

// The states of a list that has answered.
const (
	ListRead ListState = "read"
	ListNone ListState = "none" // the provider has no list
)

// List is the state of a provider's list.
type List struct {
	Provider, URL string
	State         ListState
}

// State is the stored registry. Prices are in the order of their versions.
type State struct {
	Generation int64
	Rows       []Row
	Prices     []Price
	Lists      []List
}

// Changes is a planned change of a [State].
type Changes struct {
	At       int64
	Put      []Row   // to insert or to replace
	Delete   []Row   // by their keys
	Prices   []Price // to append; the store gives the versions
	Withdraw []Price
	Lists    []List
}

// Empty reports whether there is nothing to change.
func (c Changes) Empty() bool {
	return len(c.Put)+len(c.Delete)+len(c.Prices)+len(c.Withdraw)+len(c.Lists) == 0
}

// Find returns the row of a model in a life cycle and of a list.
func (s State) Find(k Key, life api.Lifecycle, url string) (Row, bool) {
	i := slices.IndexFunc(s.Rows, func(r Row) bool { return r.Key() == k && r.Lifecycle == life && r.URL == url })
	if i < 0 {
		return Row{}, false
	}
	return s.Rows[i], true
}

// List returns the state of a list.
func (s State) List(provider, url string) ListState {
	for _, l := range s.Lists {
		if l.Provider == provider && l.URL == url {
			return l.State
		}
	}
	return ""
}

// applies reports whether p applies after q, if both apply: prices are ordered by the time
// from which they apply, then by their versions.
func (p Price) applies(q Price) bool {
	return p.From > q.From || p.From == q.From && p.Version > q.Version
}

// Prices finds the prices of models at one time.
type Prices struct {
	now  int64
	all  map[Key][]Price
	next int64
}

// At returns the prices of the state at a time.
func (s State) At(now int64) *Prices {
	p := &Prices{now: now, all: map[Key][]Price{}}
	for _, v := range s.Prices {
		k := Key{v.Provider, v.ID}
		p.all[k] = append(p.all[k], v)
		if v.From > now && (p.next == 0 || v.From < p.next) {
			p.next = v.From
		}
	}
	return p
}

// Next returns the time at which the next price applies; 0 if there is none.
func (p *Prices) Next() int64 { return p.next }

// Of returns the price of a model: that of the operator, else that of the list with the
// URL, else that of the program.
func (p *Prices) Of(k Key, url string) (Price, bool) {
	for _, by := range [...]struct {
		life api.Lifecycle
		url  string
	}{{api.LifeOperator, ""}, {api.LifeDiscovered, url}, {api.LifeBaseline, ""}} {
		if v, ok := p.By(k, by.life, by.url); ok {
			return v, true
		}
	}
	return Price{}, false
}

// By returns the price that was set in a life cycle.
func (p *Prices) By(k Key, life api.Lifecycle, url string) (Price, bool) {
	var last Price
	found := false
	for _, v := range p.all[k] {
		if v.Lifecycle == life && v.URL == url && v.From <= p.now && (!found || v.applies(last)) {
			last, found = v, true
		}
	}
	return last, found
}
