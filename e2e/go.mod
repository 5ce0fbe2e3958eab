module github.com/anima-run/anima/e2e

go 1.26.0

require github.com/anima-run/anima/pkg v0.0.0

replace github.com/anima-run/anima/pkg => ../pkg

require (
	github.com/anima-run/anima/services/heartbeat v0.0.0
	github.com/anima-run/anima/services/inference-router v0.0.0
	github.com/anima-run/anima/services/loop v0.0.0
	github.com/anima-run/anima/services/policy v0.0.0
	github.com/anima-run/anima/services/social v0.0.0
	github.com/anima-run/anima/services/treasury v0.0.0
)

replace (
	github.com/anima-run/anima/services/heartbeat => ../services/heartbeat
	github.com/anima-run/anima/services/inference-router => ../services/inference-router
	github.com/anima-run/anima/services/loop => ../services/loop
	github.com/anima-run/anima/services/policy => ../services/policy
	github.com/anima-run/anima/services/social => ../services/social
	github.com/anima-run/anima/services/treasury => ../services/treasury
)
