// Command inference-router runs the inference-router service.
package main

import (
	"github.com/anima-run/anima/pkg/host"
	router "github.com/anima-run/anima/services/inference-router"
)

func main() { host.Main(router.Service) }
