package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/anima-run/anima/pkg/api"
)

type modelMatrixCmd struct {
	Get   matrixGetCmd   `cmd:"" help:"Show the routing matrix in use."`
	Set   matrixSetCmd   `cmd:"" help:"Replace the routing matrix by that of a file."`
	Reset matrixResetCmd `cmd:"" help:"Use the built-in routing matrix again."`
}

type matrixGetCmd struct{}

func (matrixGetCmd) Run(ctx context.Context, a *app) error {
	return show(ctx, a, api.GetMatrix{}, func(w io.Writer, v api.MatrixState) {
		source := "built-in"
		if !v.Builtin {
			source = fmt.Sprintf("set, revision %d", v.Revision)
		}
		fmt.Fprintf(w, "source\t%s\n\nTIER\tTASK\tMODELS\tOUTPUT\tCEILING\n", source)
		for _, c := range v.Matrix {
			row(w, c.Tier, c.Task, cmp.Or(strings.Join(c.Models, " "), "free ones only"), orNone(c.MaxTokens, 0, "-"), orNone(c.Ceiling, -1, "none"))
		}
	})
}

type matrixSetCmd struct {
	File string `arg:"" help:"The file, JSON; - reads standard input."`
}

func (c matrixSetCmd) Run(ctx context.Context, a *app) error {
	text, err := a.readText(c.File, "name a file, or - for standard input; anima model matrix get -o json writes one")
	if err != nil {
		return err
	}
	var file api.MatrixState
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return failure(api.Invalid, fmt.Sprintf("the matrix cannot be read: %v", err), "write it in the form of anima model matrix get -o json")
	}
	if len(file.Matrix) == 0 {
		return failure(api.Invalid, "the file has no matrix", "write it in the form of anima model matrix get -o json; anima model matrix reset sets the built-in one")
	}
	return setMatrix(ctx, a, api.SetMatrix{Matrix: file.Matrix}, "set")
}

type matrixResetCmd struct{}

func (matrixResetCmd) Run(ctx context.Context, a *app) error {
	return setMatrix(ctx, a, api.SetMatrix{}, "reset to the built-in one")
}

func setMatrix(ctx context.Context, a *app, req api.SetMatrix, done string) error {
	return show(ctx, a, req, func(w io.Writer, v api.MatrixState) {
		fmt.Fprintf(w, "routing matrix %s, revision %d\n", done, v.Revision)
	})
}
