package main

import (
	"fmt"
	"maps"
	"strings"

	"github.com/anima-run/anima/pkg/api"
	"github.com/anima-run/anima/pkg/config"
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/pkg/telemetry"
)

// upConfig holds the settings that anima up has besides those of the services.
type upConfig struct {
	NATSListen string `env:"nats_listen" help:"listen address of the embedded NATS, for the command line and other programs; port 0 selects a free port; empty opens none, and then the command line cannot reach it"`
	JaegerURL  string `env:"jaeger_url" help:"URL of a Jaeger: anima up exports traces to the default OTLP port of its host, unless OTEL_EXPORTER_OTLP_ENDPOINT is set, and anima turn show prints links to it"`
}

func upDefaults() upConfig { return upConfig{NATSListen: "127.0.0.1:4222"} }

// devProfile returns the defaults in which anima up differs from a service that runs
// alone: loopback addresses, a faucet, writes synced at intervals, log level warn, and a
// short drain. A run that the drain cuts off is resumed at the next start.
func devProfile() map[string]string {
	return map[string]string{
		"ANIMA_HTTP_ADDR": "127.0.0.1:8080", "ANIMA_OPS_ADDR": "127.0.0.1:9090", "ANIMA_SYNC": host.SyncInterval,
		"ANIMA_LOG": "warn", "ANIMA_TREASURY_FAUCET": "true", "ANIMA_DRAIN": "3s",
		// Agents begin with a few dollars here: the reserve keeps them out of the tier
		// low_compute, and the standard one of ten dollars would forbid every transfer.
		"ANIMA_TREASURY_MINIMUM_RESERVE_CENTS": "50",
	}
}

// upLookup returns the settings with this precedence: flags, stored settings, environment,
// profile. The stored settings are those of [storedProvider]: none if the environment
// configures a provider. They precede variables that are set and empty, such as
// OPENAI_BASE_URL= in a file of variables. Otherwise the stored key would be used with the
// default address.
func upLookup(environment config.Lookup, flags map[string]string, stored config.Lookup) config.Lookup {
	return layered(lookupIn(flags), stored, environment, lookupIn(devProfile()))
}

// demoLookup isolates the demo from the rest of the machine: it ignores all settings of
// anima, opens no port but that of its dev chain, on loopback, and uses no provider that costs money. OTEL_ variables, which
// configure trace collectors, apply.
func demoLookup(environment config.Lookup) config.Lookup {
	demo := devProfile()
	maps.Copy(demo, map[string]string{
		"ANIMA_HTTP_ADDR": "", "ANIMA_OPS_ADDR": "", "ANIMA_LOG": "error", "ANIMA_INFERENCE_ROUTER_SIMULATED": "true",
	})
	return layered(lookupIn(demo), func(k string) (string, bool) {
		if strings.HasPrefix(k, "ANIMA_") {
			return "", false
		}
		return environment(k)
	})
}

func lookupIn(m map[string]string) config.Lookup {
	return func(k string) (string, bool) { v, ok := m[k]; return v, ok }
}

func layered(all ...config.Lookup) config.Lookup {
	return func(k string) (string, bool) {
		for _, l := range all {
			if v, ok := l(k); ok {
				return v, true
			}
		}
		return "", false
	}
}

// settings returns the validated settings of the process. Its error lists every fault of
// every service, so that no service is started with a partly valid configuration.
func settings(lookup config.Lookup) (host.Config, upConfig, error) {
	cfg, up := host.Defaults(), upDefaults()
	var faults []string
	note := func(err error) {
		if err != nil {
			faults = append(faults, strings.Split(err.Error(), "\n")...)
		}
	}
	note(config.Load("", &cfg, lookup))
	note(config.Load("", &up, lookup))
	if cfg.Replicas != 1 {
		note(fmt.Errorf("ANIMA_NATS_REPLICAS is %d, but the embedded NATS has one server: unset it", cfg.Replicas))
	}
	if up.JaegerURL != "" {
		base, err := jaegerBase(up.JaegerURL)
		note(err)
		up.JaegerURL = base
	}
	note(config.Load("", &telemetry.Config{Log: cfg.Log, LogFormat: cfg.LogFormat}, lookup))
	for _, s := range services() {
		note(s.Check(lookup))
	}
	if len(faults) > 0 {
		return cfg, up, failure(api.Invalid, "the settings have faults; nothing was started", "correct them; docs/config.md lists all settings", faults...)
	}
	return cfg, up, nil
}

// known returns all settings that anima up reads.
func known() []config.Field {
	cfg, up := host.Defaults(), upDefaults()
	all := append(config.Fields("", &cfg), config.Fields("", &up)...)
	for _, s := range services() {
		all = append(all, s.Fields()...)
	}
	return all
}
