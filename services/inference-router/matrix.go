package router

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/host"

	"github.com/anima-run/anima/services/inference-router/internal/model"
)

// matrixAtStart is the limit of the first read of the matrix, which delays the start of the
// service. If it fails, the built-in matrix applies until the watch has the stored one.
const matrixAtStart = 2 * time.Second

// matrix is the routing matrix in use: the last valid value of [api.MatrixKey], or the
// built-in matrix. A call reads it once for each selection, without a lock. It is safe for
// concurrent use.
type matrix struct {
	log    *slog.Logger
	tel    *instruments
	bucket *bus.Bucket[api.StoredMatrix]

	mu     sync.Mutex // held while state is replaced
	state  atomic.Pointer[matrixState]
	latest uint64 // revision of the last value that was examined, valid or not
}

func openMatrix(ctx context.Context, env *host.Env, tel *instruments) (*matrix, error) {
	bucket, err := bus.OpenBucket[api.StoredMatrix](ctx, env.Bus)
	if err != nil {
		return nil, err
	}
	m := newMatrix(env.Log, tel)
	m.bucket = bucket
	ctx, cancel := context.WithTimeout(ctx, matrixAtStart)
	defer cancel()
	switch e, err := bucket.Get(ctx, api.MatrixKey); {
	case err == nil:
		m.use(ctx, e)
	case api.CodeOf(err) != api.NotFound:
		env.Log.WarnContext(ctx, "routing matrix not read, using the built-in one until it is", "err", err)
	}
	return m, nil
}

func newMatrix(log *slog.Logger, tel *instruments) *matrix {
	m := &matrix{log: log, tel: tel}
	m.state.Store(builtinMatrix(0))
	return m
}

// matrixState is a matrix in the form of the contract and in that of a selection.
type matrixState struct {
	api.MatrixState
	cells model.Matrix
}

func builtinMatrix(revision uint64) *matrixState {
	cells := model.DefaultMatrix()
	return &matrixState{api.MatrixState{Matrix: cells.Cells(), Builtin: true, Revision: revision}, cells}
}

// load returns the matrix in use.
func (m *matrix) load() model.Matrix { return m.state.Load().cells }

// watch follows the stored matrix until ctx ends.
func (m *matrix) watch(ctx context.Context) error {
	err := m.bucket.Watch(ctx, api.MatrixKey, nil, func(e bus.Entry[api.StoredMatrix]) error {
		m.use(ctx, e)
		return nil
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// use replaces the matrix in use by a stored one. An invalid value is refused with a log
// message and a metric, and the matrix in use stays. A value that is older than the last
// one, or that one again, is ignored: after an outage the watch repeats it.
func (m *matrix) use(ctx context.Context, e bus.Entry[api.StoredMatrix]) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.Revision <= m.latest {
		return
	}
	m.latest = e.Revision
	next := builtinMatrix(e.Revision)
	if !e.Deleted {
		cells, err := api.DecodeMatrix(e.Value.Data)
		if err != nil {
			m.tel.matrix(ctx, "refused")
			m.log.ErrorContext(ctx, "stored routing matrix is invalid, the previous one stays in use", "revision", e.Revision, "in_use", m.state.Load().Revision, "err", err)
			return
		}
		if cells != nil {
			next = &matrixState{api.MatrixState{Matrix: cells, Revision: e.Revision}, model.NewMatrix(cells)}
		}
	}
	m.state.Store(next)
	m.tel.matrix(ctx, "used")
	m.log.InfoContext(ctx, "routing matrix in use", "revision", e.Revision, "builtin", next.Builtin)
}

func (m *matrix) get(context.Context, api.GetMatrix) (api.MatrixState, error) {
	return m.state.Load().MatrixState, nil
}

// set validates and stores a matrix and uses it in this replica; the others receive it by
// their watches. A crash after the write changes nothing: the watch of the next process has
// the value. A repeated request stores the same matrix again.
func (m *matrix) set(ctx context.Context, req api.SetMatrix) (api.MatrixState, error) {
	data, err := api.Encode(req)
	if err != nil {
		return api.MatrixState{}, err
	}
	if _, err := api.DecodeMatrix(data); err != nil {
		return api.MatrixState{}, err
	}
	value := api.StoredMatrix{Data: data}
	revision, _, err := m.bucket.Take(ctx, api.MatrixKey, value, 0, func(api.StoredMatrix) bool { return true })
	if err != nil {
		return api.MatrixState{}, err
	}
	m.use(ctx, bus.Entry[api.StoredMatrix]{Key: api.MatrixKey, Value: value, Revision: revision})
	return m.state.Load().MatrixState, nil
}
