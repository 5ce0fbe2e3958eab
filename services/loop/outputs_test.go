package loop

import (
	"strings"
	"testing"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/apptest"
	"github.com/anima-run/anima/pkg/bus"
)

func TestGetOutput(t *testing.T) {
	t.Parallel()
	h := &handlers{outputs: outputs{bus.NewObjects(apptest.Bus(t), api.Outputs)}}
	whole := "x" + strings.Repeat("é", 100_000)
	for range 2 {
		if err := h.outputs.Keep(t.Context(), "r.1", 2, whole); err != nil {
			t.Fatal(err)
		}
	}
	var got strings.Builder
	for next, parts := int64(0), 0; ; parts++ {
		p, err := h.getOutput(t.Context(), api.GetOutput{Turn: "r.1", Index: 2, Offset: next})
		if err != nil || p.Size != int64(len(whole)) || len(p.Text) > api.MaxOutputPart || parts > 10 {
			t.Fatalf("part %d: %d bytes of %d, %v", parts, len(p.Text), p.Size, err)
		}
		got.WriteString(p.Text)
		if next = p.Next; next == 0 {
			break
		}
	}
	if got.String() != whole {
		t.Errorf("read %d bytes that are not the %d kept", got.Len(), len(whole))
	}
	for want, m := range map[api.Code]api.GetOutput{
		api.NotFound: {Turn: "r.1", Index: 0}, api.Invalid: {Turn: "r.1", Index: 2, Offset: -1},
	} {
		if _, err := h.getOutput(t.Context(), m); api.CodeOf(err) != want {
			t.Errorf("%+v: %v, want %s", m, err, want)
		}
	}
	if p, err := h.getOutput(t.Context(), api.GetOutput{Turn: "r.1", Index: 2, Offset: int64(len(whole))}); err != nil || p.Text != "" || p.Next != 0 {
		t.Errorf("at the end: %+v, %v, want nothing", p, err)
	}
}
