// Package sqlstore stores loop's agents, sessions, runs, turns, memories and goals in
// SQL, with the same statements on SQLite and PostgreSQL wherever the engines allow it.
// It must not decide anything about a run: package engine decides what the end of a run
// means for its agent, and packages lifecycle, memory and goal hold the rules that the store
// applies.
package sqlstore

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/outbox"
	"github.com/anima-run/anima/pkg/sqldb"

	"github.com/anima-run/anima/services/loop/internal/agent"
	"github.com/anima-run/anima/services/loop/internal/engine"
)

//go:embed migrations/*.sql
var files embed.FS

// Migrations returns the migrations of the store, including those of the outbox.
func Migrations() fs.FS { return outbox.WithMigrations(files) }

// Store implements the stores of packages engine, goal and, by [Memory], memory and soul.
// It is safe for concurrent use.
type Store struct {
	db         *sqldb.DB
	workspaces string // folder that holds a folder for each agent
	expired    expiries

	definitions definitions
}

// New returns a store on a migrated database.
func New(db *sqldb.DB, workspaces string) *Store { return &Store{db: db, workspaces: workspaces} }

// MainSession returns the id of an agent's first main session. After that session is
// terminated, the agent's row names its successor.
func MainSession(agent string) string { return agent + "-main" }

// MailSession returns the id of an agent's first session for mail. It is replaced as in
// [MainSession].
func MailSession(agent string) string { return agent + "-mail" }

// Applied is the result of [Store.Apply].
type Applied struct {
	Agent   api.Agent
	Changed bool // the definition is new
}

// Apply creates an agent or replaces its definition, and adds the announcement to the
// outbox in the same transaction. A definition with the same text changes nothing. Apply
// restores an agent that was deleted. The address is that of a new agent, and of one that is
// restored: a change of its wallet while it was deleted was not stored.
func (s *Store) Apply(ctx context.Context, d agent.Definition, id, address, source string, at int64) (Applied, error) {
	def, err := api.Encode(d)
	if err != nil {
		return Applied{}, err
	}
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (out Applied, err error) {
		if err := tx.Lock(ctx, "agent "+id); err != nil { // a new agent has no row to lock
			return out, err
		}
		var old string
		var deleted int64
		c := api.AgentChanged{Agent: id, At: at}
		err = tx.QueryRowContext(ctx, `select source, deleted_at from agents where id = $1`+s.db.ForUpdate(), id).Scan(&old, &deleted)
		switch {
		case errors.Is(err, sqldb.ErrNotFound):
			c.Previous = api.StateSetup
			// The numbers of its changes begin with the time: if an earlier database was lost, heartbeat
			// and social have numbers of an agent with this id, and ignore lower ones.
			tx.Queue(ctx, `insert into agents (id, name, address, source, definition, state, state_reason, state_since, created_at, updated_at, state_seq)
				values ($1, $2, $3, $4, $5, $6, $7, $8, $8, $8, $8)`,
				id, d.Name, address, source, string(def), api.StateSleeping, "just born", at)
			tx.Queue(ctx, `insert into sessions (id, agent, created_at, updated_at) values ($1, $2, $3, $3)`, MainSession(id), id, at)
		case err != nil:
			return out, err
		case old == source && deleted == 0:
			out.Agent, err = s.agentRow(tx.QueryRowContext(ctx, agentColumns+` and id = $1`, id))
			return out, err
		default:
			if deleted != 0 {
				c.Previous = api.StateDead
				if err := s.restore(ctx, tx, id, address, at); err != nil {
					return out, err
				}
			}
			tx.Queue(ctx, `update agents set name = $2, source = $3, definition = $4, version = version + 1,
				state_seq = state_seq + 1, updated_at = $5, chosen_model = '', low_compute = 0 where id = $1`, id, d.Name, source, string(def), at)
		}
		out.Changed = true
		if out.Agent, err = s.agentRow(tx.QueryRowContext(ctx, agentColumns+` and id = $1`, id)); err != nil {
			return out, err
		}
		if c.Seq, err = sqldb.One[int64](ctx, tx, `select state_seq from agents where id = $1`, id); err != nil {
			return out, err
		}
		c.Name, c.Address, c.State, c.Reason, c.SleepUntil = out.Agent.Name, out.Agent.Address, out.Agent.State, out.Agent.Reason, out.Agent.SleepUntil
		s.note(ctx, tx, "", &c)
		return out, announce(ctx, tx, &c)
	})
}

// IsApplied reports whether an agent, which is not deleted, has this AGENT.md.
func (s *Store) IsApplied(ctx context.Context, id, source string) (bool, error) {
	return sqldb.One[bool](ctx, s.db, `select count(*) > 0 from agents where id = $1 and source = $2 and deleted_at = 0`, id, source)
}

// Scheduled returns the schedule of an agent's definition, none for an agent that is
// deleted, with a number that is another one after each change of the definition, deletion
// or restoration. Errors: NotFound.
func (s *Store) Scheduled(ctx context.Context, id string) (beats []api.Beat, version int64, err error) {
	var definition string
	var deleted int64
	err = s.db.QueryRowContext(ctx, `select definition, version, deleted_at from agents where id = $1`, id).Scan(&definition, &version, &deleted)
	if err != nil || deleted != 0 {
		return []api.Beat{}, 0, missing(err, noAgent(id))
	}
	d, err := s.definitions.decode(id, definition)
	return d.Beats(), version, err
}

// SetAddress changes the address of an agent and announces it, and returns false if it has
// the address. Errors: NotFound.
func (s *Store) SetAddress(ctx context.Context, id, address string, at int64) (bool, error) {
	return sqldb.Do(ctx, s.db, func(tx *sqldb.Tx) (changed bool, err error) {
		var was string
		err = tx.QueryRowContext(ctx, `select address from agents where id = $1 and deleted_at = 0`+s.db.ForUpdate(), id).Scan(&was)
		if err != nil || was == address {
			return false, missing(err, noAgent(id))
		}
		tx.Queue(ctx, `update agents set address = $2, state_seq = state_seq + 1, updated_at = $3 where id = $1`, id, address, at)
		a, err := s.agentRow(tx.QueryRowContext(ctx, agentColumns+` and id = $1`, id))
		if err != nil {
			return false, err
		}
		c := api.AgentChanged{Agent: id, Name: a.Name, Address: a.Address, Previous: a.State, State: a.State, Reason: a.Reason, SleepUntil: a.SleepUntil, At: at}
		if c.Seq, err = sqldb.One[int64](ctx, tx, `select state_seq from agents where id = $1`, id); err != nil {
			return false, err
		}
		return true, announce(ctx, tx, &c)
	})
}

// announce adds a change of an agent's state to the outbox.
func announce(ctx context.Context, tx *sqldb.Tx, c *api.AgentChanged) error {
	return outbox.Add(ctx, tx, "agent_state/"+c.Agent+"/"+strconv.FormatInt(c.Seq, 10), *c)
}

const agentColumns = `select id, name, address, definition, state, state_reason, sleep_until, turns, version, created_at, updated_at, main_session, mail_session, chosen_model, low_compute from agents where deleted_at = 0`

func (s *Store) agentRow(r sqldb.Scanner) (api.Agent, error) {
	var a api.Agent
	var definition string
	err := r.Scan(&a.ID, &a.Name, &a.Address, &definition, &a.State, &a.Reason, &a.SleepUntil, &a.Turns, &a.Version, &a.CreatedAt, &a.UpdatedAt, &a.Session, &a.Mail, &a.Chosen, &a.LowCompute)
	if err != nil {
		return a, missing(err, &api.Error{Code: api.NotFound, Message: "there is no such agent", Next: agentsNext})
	}
	d, err := s.definitions.decode(a.ID, definition)
	if err != nil {
		return a, err
	}
	a.Description, a.Creator, a.Model, a.Tools = d.Description, d.Creator, d.Model, d.Tools
	a.Session, a.Mail = cmp.Or(a.Session, MainSession(a.ID)), cmp.Or(a.Mail, MailSession(a.ID))
	return a, nil
}

// missing replaces [sqldb.ErrNotFound] by another error, or by none if instead is nil.
func missing(err error, instead *api.Error) error {
	switch {
	case !errors.Is(err, sqldb.ErrNotFound):
		return err
	case instead == nil:
		return nil
	}
	return instead
}

func noAgent(id string) *api.Error { return api.Errorf(api.NotFound, "there is no agent %s", id) }

const agentsNext = "anima agent list shows the ones there are; anima agent apply makes one"

// Agent returns an agent. Errors: NotFound, also for one that was deleted.
func (s *Store) Agent(ctx context.Context, id string) (api.Agent, error) {
	return s.agentRow(s.db.QueryRowContext(ctx, agentColumns+` and id = $1`, id))
}

// Agents returns at most limit agents with ids greater than after, ordered by id.
func (s *Store) Agents(ctx context.Context, after string, limit int) ([]api.Agent, error) {
	return notNil(sqldb.All(ctx, s.db, s.agentRow, agentColumns+` and id > $1 order by id limit $2`, after, limit))
}

// Definition returns the properties of an agent that a turn needs. Errors: NotFound, also
// for an agent that was deleted.
func (s *Store) Definition(ctx context.Context, id string) (engine.Agent, error) {
	if _, err := s.Agent(ctx, id); err != nil {
		return engine.Agent{}, err
	}
	return s.definition(ctx, s.db, id)
}

// definition is [Store.Definition] within q, also for a deleted agent. Errors: NotFound.
func (s *Store) definition(ctx context.Context, q sqldb.Querier, id string) (engine.Agent, error) {
	var row definitionRow
	err := q.QueryRowContext(ctx, `select `+definitionColumns+` from agents a where id = $1`, id).Scan(row.columns()...)
	if err != nil {
		return engine.Agent{}, missing(err, noAgent(id))
	}
	return s.agentOf(id, row)
}

// definitionColumns are the columns of table agents, with alias a, of a definitionRow.
const definitionColumns = `a.name, a.address, a.state, a.definition, a.turns, coalesce((` + ownGenesis + `), ''), a.chosen_model, a.low_compute`

type definitionRow struct {
	engine.Agent        // with its columns only
	definition   string // JSON
}

func (r *definitionRow) columns() []any {
	return []any{&r.Name, &r.Address, &r.State, &r.definition, &r.Turns, &r.Genesis, &r.Choice.Model, &r.Choice.LowCompute}
}

// agentOf makes an [engine.Agent] from a row. A genesis prompt that the agent itself has
// set replaces that of its definition.
func (s *Store) agentOf(id string, row definitionRow) (engine.Agent, error) {
	d, err := s.definitions.decode(id, row.definition)
	if err != nil {
		return engine.Agent{}, err
	}
	a := row.Agent
	a.ID, a.Workspace, a.Genesis = id, s.Workspace(id), cmp.Or(a.Genesis, d.Body)
	a.Creator, a.Description, a.Defined, a.Tools, a.Autonomous, a.Message = d.Creator, d.Description, d.Model, d.Tools, d.Autonomy, d.Message
	a.Choose(a.Choice)
	a.Window, a.Reserve, a.Flush = int64(d.Context.Window), int64(d.Context.Reserve), int64(d.Context.Flush)
	a.MaxTurns, a.MaxCalls, a.Network = d.Limits.MaxTurns, d.Limits.MaxToolCalls, d.Sandbox.Network
	a.ExecTimeoutS, a.RunTimeoutS = int(d.Sandbox.Timeout.Seconds()), int(d.Limits.Timeout.Seconds())
	return a, nil
}

// definitions is a cache of decoded definitions by their text. The zero value is empty. It
// is safe for concurrent use.
type definitions struct {
	mu  sync.Mutex
	all map[string]agent.Definition
}

// maxDefinitions is the number of definitions at which the cache is cleared.
const maxDefinitions = 1024

// decode decodes the JSON text of an agent's definition. The caller must not change the
// result.
func (m *definitions) decode(id, text string) (agent.Definition, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.all[text]
	if ok {
		return d, nil
	}
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		return d, fmt.Errorf("definition of %s: %w", id, err)
	}
	if m.all == nil || len(m.all) >= maxDefinitions {
		m.all = map[string]agent.Definition{}
	}
	m.all[text] = d
	return d, nil
}

const sessionColumns = `select id, agent, runs, turns, input_tokens, output_tokens, cost, created_at, updated_at, terminated_at, terminated_reason, reset_through from sessions`

func sessionRow(r sqldb.Scanner) (api.Session, error) {
	var v api.Session
	err := r.Scan(&v.ID, &v.Agent, &v.Messages, &v.Turns, &v.InputTokens, &v.OutputTokens, &v.Cost, &v.CreatedAt, &v.UpdatedAt, &v.Terminated, &v.Reason, &v.Reset)
	if err != nil {
		err = missing(err, &api.Error{Code: api.NotFound, Message: "there is no such session", Next: "anima session list shows the ones there are"})
	}
	return v, err
}

// Session returns a session. Errors: NotFound.
func (s *Store) Session(ctx context.Context, id string) (api.Session, error) {
	return sessionRow(s.db.QueryRowContext(ctx, sessionColumns+` where id = $1`, id))
}

// Place is a position in a list that is ordered by time, latest first, and then by id.
// The zero value is the beginning of the list.
type Place struct {
	At int64
	ID string
}

// Sessions returns at most limit sessions after a place, the latest first: those of an
// agent, or all if agent is "". PostgreSQL infers the type of a parameter from its first
// use, so the column precedes the 0.
func (s *Store) Sessions(ctx context.Context, agent string, after Place, limit int) ([]api.Session, error) {
	return notNil(sqldb.All(ctx, s.db, sessionRow, sessionColumns+` where ($1 = '' or agent = $1)
		and (updated_at < $2 or updated_at = $2 and id > $3 or $2 = 0) order by updated_at desc, id limit $4`, agent, after.At, after.ID, limit))
}

// NewSession creates a session. It does not change one that exists.
func (s *Store) NewSession(ctx context.Context, id, agent string, at int64) error {
	return sqldb.InTx(ctx, s.db, func(tx *sqldb.Tx) error {
		addSession(ctx, tx, id, agent, at)
		return nil
	})
}

func addSession(ctx context.Context, tx *sqldb.Tx, id, agent string, at int64) {
	tx.Queue(ctx, `insert into sessions (id, agent, created_at, updated_at) values ($1, $2, $3, $3) on conflict (id) do nothing`, id, agent, at)
}

// Workspace returns the folder in which an agent's tools work.
func (s *Store) Workspace(agent string) string { return filepath.Join(s.workspaces, agent) }

// notNil replaces a nil list by an empty one, so that JSON has [] instead of null.
func notNil[T any](all []T, err error) ([]T, error) {
	if all == nil {
		all = []T{}
	}
	return all, err
}
