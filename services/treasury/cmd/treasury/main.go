// Command treasury runs the treasury service alone.
package main

import (
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/treasury"
)

func main() { host.Main(treasury.Service) }
