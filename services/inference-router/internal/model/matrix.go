package model

import "github.com/anima-run/anima/pkg/api"

// Unlimited is the ceiling of a cell without a ceiling.
const Unlimited int64 = -1

// Cell is one field of the routing matrix: the models to try in order, the output limit
// in tokens, and the highest cost of one call in micro-USD. A cell without models is not
// served: only free models may be called for it.
type Cell struct {
	Models    []string
	MaxTokens int64 // 0: the limit of the model
	Ceiling   int64
}

// Matrix is the routing matrix, the cells by tier and task. It is immutable.
type Matrix map[api.Tier]map[api.Task]Cell

// cell returns the cell of a tier and a task, and false if the tier or the task is not
// one of the matrix. The unknown tier has the row of normal.
func (m Matrix) cell(tier api.Tier, task api.Task) (Cell, bool) {
	if tier == api.TierUnknown {
		tier = api.TierNormal
	}
	cell, ok := m[tier][task]
	return cell, ok
}

// DefaultMatrix returns the matrix that applies until another one is set
// (docs/reference/inference-router.md, Routing matrix). Of the tier dead no task is served,
// and of the tier critical neither planning nor summarization.
func DefaultMatrix() Matrix {
	const cent = 10_000 // micro-USD
	top := []string{"gpt-5.2", "gpt-5.3"}
	mixed := []string{"gpt-5.2", "gpt-5-mini"}
	mini := []string{"gpt-5-mini"}
	return Matrix{
		api.TierHigh: {
			api.TaskTurn:     {top, 8192, Unlimited},
			api.TaskTriage:   {mini, 2048, 5 * cent},
			api.TaskSafety:   {top, 4096, 20 * cent},
			api.TaskSummary:  {mixed, 4096, 15 * cent},
			api.TaskPlanning: {top, 8192, Unlimited},
		},
		api.TierNormal: {
			api.TaskTurn:     {mixed, 4096, Unlimited},
			api.TaskTriage:   {mini, 2048, 5 * cent},
			api.TaskSafety:   {mixed, 4096, 10 * cent},
			api.TaskSummary:  {mixed, 4096, 10 * cent},
			api.TaskPlanning: {mixed, 4096, Unlimited},
		},
		api.TierLow: {
			api.TaskTurn:     {mini, 4096, 10 * cent},
			api.TaskTriage:   {mini, 1024, 2 * cent},
			api.TaskSafety:   {mini, 2048, 5 * cent},
			api.TaskSummary:  {mini, 2048, 5 * cent},
			api.TaskPlanning: {mini, 2048, 5 * cent},
		},
		api.TierCritical: {
			api.TaskTurn:     {mini, 2048, 3 * cent},
			api.TaskTriage:   {mini, 512, 1 * cent},
			api.TaskSafety:   {mini, 1024, 2 * cent},
			api.TaskSummary:  {},
			api.TaskPlanning: {},
		},
		api.TierDead: {
			api.TaskTurn: {}, api.TaskTriage: {}, api.TaskSafety: {}, api.TaskSummary: {}, api.TaskPlanning: {},
		},
	}
}
