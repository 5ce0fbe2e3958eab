package router

import (
	"log/slog"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
)

// TestLastValidMatrixStays checks that a broken or old value does not replace the matrix in
// use, and that a reset does.
func TestLastValidMatrixStays(t *testing.T) {
	t.Parallel()
	tel, err := newInstruments(noop.NewMeterProvider())
	if err != nil {
		t.Fatal(err)
	}
	m := newMatrix(slog.New(slog.DiscardHandler), tel)
	valid, err := api.Encode(api.SetMatrix{Matrix: builtinMatrix(0).Matrix})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		revision uint64
		data     string
		builtin  bool
		want     uint64
	}{
		{5, string(valid), false, 5},
		{6, "broken", false, 5},
		{7, `{"matrix":[]}`, false, 5},
		{4, "{}", false, 5}, // older
		{8, "{}", true, 8},
		{8, string(valid), true, 8}, // the same again
	} {
		m.use(t.Context(), bus.Entry[api.StoredMatrix]{Key: api.MatrixKey, Revision: c.revision, Value: api.StoredMatrix{Data: []byte(c.data)}})
		if got := m.state.Load(); got.Builtin != c.builtin || got.Revision != c.want {
			t.Errorf("after %d %.20s: got builtin %v, revision %d; want %v, %d", c.revision, c.data, got.Builtin, got.Revision, c.builtin, c.want)
		}
	}
}
