// Command social runs the social service.
package main

import (
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/social"
)

func main() { host.Main(social.Service) }
