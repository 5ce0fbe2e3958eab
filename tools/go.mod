module github.com/anima-run/anima/tools

go 1.26.0
