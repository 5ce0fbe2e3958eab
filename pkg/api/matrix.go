package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// Messages of inference-router about the routing matrix
// (docs/reference/inference-router.md, Routing matrix).
//
// History: v1 2026-11 first version.

// Matrix is the routing matrix: one cell for each tier and task, in any order.
type Matrix []Cell

// Cell is one field of the routing matrix. A cell without models is not served: only free
// models may be called for it.
type Cell struct {
	Tier      Tier     `json:"tier"`
	Task      Task     `json:"task"`
	Models    []string `json:"models"`    // ids in the order to try them
	MaxTokens int64    `json:"maxTokens"` // output limit of a call; 0 if the cell is not served
	Ceiling   Micros   `json:"ceiling"`   // of one call; -1: none; 0 if the cell is not served
}

// GetMatrix requests the [MatrixState].
type GetMatrix struct{}

// SetMatrix replaces the routing matrix. Only the operator may send it. The router stores
// it in the coordination bucket, and every replica uses it for the calls that begin after
// it was received. Setting the same matrix again changes nothing but the revision. The
// answer is the stored [MatrixState]. Errors: Invalid with every fault in Details;
// Conflict (another change at the same time).
type SetMatrix struct {
	Matrix Matrix `json:"matrix,omitempty"` // none: the built-in matrix
}

// MatrixState is the routing matrix and where it comes from.
type MatrixState struct {
	Matrix   Matrix `json:"matrix"`
	Builtin  bool   `json:"builtin"`  // no matrix is set: it is that of the program
	Revision uint64 `json:"revision"` // of the key [MatrixKey]; 0: it was never set
}

// MatrixKey is the key of the routing matrix in the coordination bucket.
const MatrixKey = "matrix"

// StoredMatrix is the value of [MatrixKey]: the JSON of a [SetMatrix], which [DecodeMatrix]
// reads. It is not decoded by the bus, so that the router notices a broken value.
type StoredMatrix struct{ Data []byte }

func (m StoredMatrix) encode() ([]byte, error) { return m.Data, nil } //nolint:unparam // implements the interface of Encode

func (m *StoredMatrix) decode(data []byte) (bool, error) { //nolint:unparam // implements the interface of Decode
	m.Data = bytes.Clone(data)
	return true, nil
}

// The limits of a matrix.
const (
	maxMatrix     = 64 << 10  // bytes of its JSON
	maxCellModels = 16        // models of a cell
	maxModelID    = 200       // bytes of a model id
	maxCellTokens = 1_000_000 // output limit of a cell
)

// DecodeMatrix decodes and validates a [StoredMatrix]. A nil matrix means the built-in one.
// Errors: Invalid, see [Matrix.Validate].
func DecodeMatrix(data []byte) (Matrix, error) {
	if len(data) > maxMatrix {
		return nil, Errorf(Invalid, "the matrix has %d bytes, more than %d", len(data), maxMatrix)
	}
	var m SetMatrix
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, Errorf(Invalid, "the matrix cannot be read: %v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, Errorf(Invalid, "the matrix cannot be read: text follows it")
	}
	if m.Matrix == nil {
		return nil, nil
	}
	return m.Matrix, m.Matrix.Validate()
}

// Validate checks that each tier and task has one cell, and that there are no others. A
// cell with models has an output limit and a ceiling or -1; a cell without models has
// neither. Errors: Invalid with every fault in Details.
func (m Matrix) Validate() error {
	type place struct {
		tier Tier
		task Task
	}
	var faults []string
	seen := map[place]bool{}
	for _, c := range m {
		at := place{c.Tier, c.Task}
		fault := c.fault()
		switch {
		case !slices.Contains(Tiers(), c.Tier):
			fault = "this is not a tier"
		case !slices.Contains(Tasks(), c.Task):
			fault = "this is not a task"
		case seen[at]:
			fault = "the cell is there twice"
		}
		seen[at] = true
		if fault != "" {
			faults = append(faults, fmt.Sprintf("cell %.40q %.40q: %s", c.Tier, c.Task, fault))
		}
	}
	for _, tier := range Tiers() {
		for _, task := range Tasks() {
			if !seen[place{tier, task}] {
				faults = append(faults, fmt.Sprintf("cell %q %q: it is missing", tier, task))
			}
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return &Error{
		Code: Invalid, Message: fmt.Sprintf("the matrix has %d faults: %s", len(faults), faults[0]), Details: faults,
		Next: "correct the cells; anima model matrix get -o json shows a complete matrix",
	}
}

func (c Cell) fault() string {
	if len(c.Models) == 0 {
		if c.MaxTokens != 0 || c.Ceiling != 0 {
			return "without models, maxTokens and ceiling have to be 0"
		}
		return ""
	}
	switch {
	case len(c.Models) > maxCellModels:
		return fmt.Sprintf("%d models are more than %d", len(c.Models), maxCellModels)
	case c.MaxTokens < 1 || c.MaxTokens > maxCellTokens:
		return fmt.Sprintf("maxTokens is %d: 1 to %d are possible", c.MaxTokens, maxCellTokens)
	case c.Ceiling != -1 && (c.Ceiling < 1 || c.Ceiling > MaxMicros):
		return fmt.Sprintf("ceiling is %d: it is in micro-USD from 1, or -1 for none", c.Ceiling)
	}
	for i, id := range c.Models {
		switch {
		case !ValidModelID(id):
			return fmt.Sprintf("%.40q is not the id of a model", id)
		case slices.Contains(c.Models[:i], id):
			return fmt.Sprintf("model %.40q is named twice", id)
		}
	}
	return ""
}

func (GetMatrix) Subject() Subject { return request(Inference, "get_matrix") }
func (SetMatrix) Subject() Subject { return request(Inference, "set_matrix") }
