package telemetry

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

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
func samplerOf(env environment) (sdktrace.Sampler, error) {
	name, v := env.first("OTEL_TRACES_SAMPLER")
	root, parentBased := strings.CutPrefix(cmp.Or(v, "parentbased_always_on"), "parentbased_")
	var s sdktrace.Sampler
	switch root {
	case "always_on":
		s = sdktrace.AlwaysSample()
	case "always_off":
		s = sdktrace.NeverSample()
	case "traceidratio":
		name, v := env.first(name + "_ARG")
		ratio, err := strconv.ParseFloat(cmp.Or(v, "1"), 64)
		if err != nil || !(ratio >= 0 && ratio <= 1) {
			return nil, fmt.Errorf("%s=%q: want the fraction of traces to keep, from 0 to 1", name, v)
		}
		s = sdktrace.TraceIDRatioBased(ratio)
	default:
		return nil, fmt.Errorf("%s=%q: want always_on, always_off, traceidratio or one of these after parentbased_", name, v)
	}
	if parentBased {
		s = sdktrace.ParentBased(s)
	}
	return s, nil
}
