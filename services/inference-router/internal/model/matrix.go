package model

import "github.com/anima-run/anima/pkg/api"

// Unlimited is the ceiling of a cell without a ceiling.
const Unlimited = -1

// Matrix is the routing matrix, the cells by tier and task. It is immutable.
type Matrix map[api.Tier]map[api.Task]api.Cell

// NewMatrix returns the matrix of valid cells.
func NewMatrix(cells api.Matrix) Matrix {
	m := Matrix{}
	for _, c := range cells {
		if m[c.Tier] == nil {
			m[c.Tier] = map[api.Task]api.Cell{}
		}
		m[c.Tier][c.Task] = c
	}
	return m
}

// Cells returns the cells in the order of the tiers and tasks.
func (m Matrix) Cells() api.Matrix {
	var all api.Matrix
	for _, tier := range api.Tiers() {
		for _, task := range api.Tasks() {
			if c, ok := m[tier][task]; ok {
				c.Tier, c.Task = tier, task
				all = append(all, c)
			}
		}
	}
	return all
}

// cellOf returns the cell of a tier and a task, and false if the tier or the task is not
// one of the matrix. The unknown tier has the row of normal.
func cellOf(m Matrix, tier api.Tier, task api.Task) (api.Cell, bool) {
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
	const cent = api.Cent
	top := []string{"gpt-5.2", "gpt-5.3"}
	mixed := []string{"gpt-5.2", "gpt-5-mini"}
	mini := []string{"gpt-5-mini"}
	return Matrix{
		api.TierHigh: {
			api.TaskTurn:     {Models: top, MaxTokens: 8192, Ceiling: Unlimited},
			api.TaskTriage:   {Models: mini, MaxTokens: 2048, Ceiling: 5 * cent},
			api.TaskSafety:   {Models: top, MaxTokens: 4096, Ceiling: 20 * cent},
			api.TaskSummary:  {Models: mixed, MaxTokens: 4096, Ceiling: 15 * cent},
			api.TaskPlanning: {Models: top, MaxTokens: 8192, Ceiling: Unlimited},
		},
		api.TierNormal: {
			api.TaskTurn:     {Models: mixed, MaxTokens: 4096, Ceiling: Unlimited},
			api.TaskTriage:   {Models: mini, MaxTokens: 2048, Ceiling: 5 * cent},
			api.TaskSafety:   {Models: mixed, MaxTokens: 4096, Ceiling: 10 * cent},
			api.TaskSummary:  {Models: mixed, MaxTokens: 4096, Ceiling: 10 * cent},
			api.TaskPlanning: {Models: mixed, MaxTokens: 4096, Ceiling: Unlimited},
		},
		api.TierLow: {
			api.TaskTurn:     {Models: mini, MaxTokens: 4096, Ceiling: 10 * cent},
			api.TaskTriage:   {Models: mini, MaxTokens: 1024, Ceiling: 2 * cent},
			api.TaskSafety:   {Models: mini, MaxTokens: 2048, Ceiling: 5 * cent},
			api.TaskSummary:  {Models: mini, MaxTokens: 2048, Ceiling: 5 * cent},
			api.TaskPlanning: {Models: mini, MaxTokens: 2048, Ceiling: 5 * cent},
		},
		api.TierCritical: {
			api.TaskTurn:     {Models: mini, MaxTokens: 2048, Ceiling: 3 * cent},
			api.TaskTriage:   {Models: mini, MaxTokens: 512, Ceiling: 1 * cent},
			api.TaskSafety:   {Models: mini, MaxTokens: 1024, Ceiling: 2 * cent},
			api.TaskSummary:  {Models: []string{}},
			api.TaskPlanning: {Models: []string{}},
		},
		api.TierDead: {
			api.TaskTurn: {Models: []string{}}, api.TaskTriage: {Models: []string{}}, api.TaskSafety: {Models: []string{}}, api.TaskSummary: {Models: []string{}}, api.TaskPlanning: {Models: []string{}},
		},
	}
}
