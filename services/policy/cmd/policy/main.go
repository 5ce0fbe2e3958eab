// Command policy runs the policy service.
package main

import (
	"github.com/anima-run/anima/pkg/host"
	"github.com/anima-run/anima/services/policy"
)

func main() { host.Main(policy.Service) }
