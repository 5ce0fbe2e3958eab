// Command loop runs the loop service.
package main

import (
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/loop"
)

func main() {
	loop.Init()
	host.Main(loop.Service)
}
