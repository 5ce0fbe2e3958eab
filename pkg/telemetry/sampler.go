package telemetry

import (
	"fmt"
	"strconv"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// samplerOf reads OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG. Without them every
// trace that begins in this process is sampled, and a trace that began elsewhere if it is
// sampled there. There is no head sampling by default, because the value of a trace (a
// turn, a payment, an error, or a tick without work) is known only at its end. Collectors
// drop unwanted traces by policies on whole traces.
//
// A turn has its own root ([StartRoot]), so the sampling decision of a sender does not
// apply.
func samplerOf(env func(string) (string, bool)) (sdktrace.Sampler, error) {
	const name = "OTEL_TRACES_SAMPLER"
	ratio := func() (sdktrace.Sampler, error) {
		v, _ := env(name + "_ARG")
		if v == "" {
			return sdktrace.AlwaysSample(), nil
		}
		f, err := strconv.ParseFloat(v, 64)
		if err != nil || !(f >= 0 && f <= 1) {
			return nil, fmt.Errorf("%s_ARG=%q: want the fraction of traces to keep, from 0 to 1", name, v)
		}
		return sdktrace.TraceIDRatioBased(f), nil
	}
	switch v, _ := env(name); v {
	case "", "parentbased_always_on":
		return sdktrace.ParentBased(sdktrace.AlwaysSample()), nil
	case "always_on":
		return sdktrace.AlwaysSample(), nil
	case "always_off":
		return sdktrace.NeverSample(), nil
	case "parentbased_always_off":
		return sdktrace.ParentBased(sdktrace.NeverSample()), nil
	case "traceidratio":
		return ratio()
	case "parentbased_traceidratio":
		root, err := ratio()
		if err != nil {
			return nil, err
		}
		return sdktrace.ParentBased(root), nil
	default:
		return nil, fmt.Errorf("%s=%q: want always_on, always_off, traceidratio or one of these after parentbased_", name, v)
	}
}
