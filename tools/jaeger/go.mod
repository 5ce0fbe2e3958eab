module github.com/anima-run/anima/tools/jaeger

go 1.26.0
