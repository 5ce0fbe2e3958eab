//go:build !linux

package sandbox

import "context"

type kernel struct{}

func thisKernel(bool) kernel { return kernel{} }

// run returns ErrUnavailable: sandboxing, and killing all processes of a command, need
// Linux.
func run(context.Context, Spec, kernel) (Result, error) { return Result{}, ErrUnavailable }

func start(context.Context, Spec, kernel) (*Process, error) { return nil, ErrUnavailable }

// Probe returns the zero Capabilities, because sandboxing needs Linux.
func Probe(context.Context) Capabilities { return Capabilities{} }

// Init does nothing: on this system Run and Start create no processes.
func Init() {}
