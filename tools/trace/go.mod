module github.com/anima-run/anima/tools/trace

go 1.26.0
