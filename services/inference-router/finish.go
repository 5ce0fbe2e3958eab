package router

import (
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

// finishReasons maps the finish reasons of other providers, in lower case, to those of
// package api.
//
//nolint:gochecknoglobals // a constant table
var finishReasons = map[string]string{
	"end_turn": api.FinishStop, "eos": api.FinishStop, "eos_token": api.FinishStop, "stop_sequence": api.FinishStop, "completed": api.FinishStop,
	"max_tokens": api.FinishLength, "max_output_tokens": api.FinishLength, "model_length": api.FinishLength,
	"tool_use": api.FinishToolCalls, "function_call": api.FinishToolCalls,
	"safety": api.FinishFilter, "recitation": api.FinishFilter, "blocked": api.FinishFilter, "sensitive": api.FinishFilter,
}

// setFinish translates the finish reason of an answer to one of package api; an unknown
// reason stays as it is. An answer that stopped with neither text nor tool call is
// [api.FinishEmpty].
func setFinish(c *api.Completion) {
	if word, ok := finishReasons[strings.ToLower(c.Finish)]; ok {
		c.Finish = word
	}
	if strings.TrimSpace(c.Text) == "" && len(c.ToolCalls) == 0 && (c.Finish == api.FinishStop || c.Finish == api.FinishToolCalls) {
		c.Finish = api.FinishEmpty
	}
}
