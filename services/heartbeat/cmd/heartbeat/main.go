// Command heartbeat runs the heartbeat service.
package main

import (
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/heartbeat"
)

func main() { host.Main(heartbeat.Service) }
