//go:build !linux

package sandbox

import "context"

type kernel struct{}

func thisKernel(bool) kernel { return kernel{} }

// run refuses: what holds commands is Linux alone, and with it the means to
// end them all.
func run(context.Context, Spec, kernel) (Result, error) { return Result{}, ErrUnavailable }

func start(context.Context, Spec, kernel) (*Process, error) { return nil, ErrUnavailable }

// Probe tells that there is nothing to hold commands with.
func Probe(context.Context) Capabilities { return Capabilities{} }

// Init returns at once: Run and Start make no process here.
func Init() {}
