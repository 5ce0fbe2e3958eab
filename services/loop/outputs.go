package loop

import (
	"context"
	"strconv"
	"unicode/utf8"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/bus"
	"github.com/anima-run/anima/pkg/failpoint"
)

// outputs stores outputs of tools that are too long for a turn.
type outputs struct{ objects *bus.Objects }

// Keep implements engine.Outputs. The name is that of the call: a repeated call
// overwrites its output.
func (o outputs) Keep(ctx context.Context, turn string, index int, text string) error {
	return failpoint.Do(ctx, failpoint.LoopOutput, func(ctx context.Context) error {
		return o.objects.Put(ctx, outputName(turn, index), []byte(text))
	})
}

func outputName(turn string, index int) string { return turn + "." + strconv.Itoa(index) }

func (h *handlers) getOutput(ctx context.Context, m api.GetOutput) (api.OutputPart, error) {
	if m.Offset < 0 || m.Index < 0 || m.Turn == "" {
		return api.OutputPart{}, &api.Error{Code: api.Invalid, Message: "the turn is empty, or the index or the offset is negative", Next: "name the turn and the index of a call, and begin at offset 0"}
	}
	data, size, err := h.outputs.objects.Read(ctx, outputName(m.Turn, m.Index), m.Offset, api.MaxOutputPart)
	if api.CodeOf(err) == api.NotFound {
		err = &api.Error{
			Code: api.NotFound, Message: "no output is stored for call " + strconv.Itoa(m.Index) + " of turn " + m.Turn,
			Next: "an output that fits into its turn is in the turn; a longer one is kept for 7 days",
		}
	}
	if err != nil {
		return api.OutputPart{}, err
	}
	end := m.Offset + int64(len(data))
	if end < size { // do not cut within a UTF-8 sequence
		for cut := len(data) - 1; cut > len(data)-utf8.UTFMax && cut >= 0; cut-- {
			if utf8.RuneStart(data[cut]) {
				if !utf8.FullRune(data[cut:]) {
					data, end = data[:cut], m.Offset+int64(cut)
				}
				break
			}
		}
	}
	part := api.OutputPart{Text: string(data), Size: size}
	if end < size {
		part.Next = end
	}
	return part, nil
}
