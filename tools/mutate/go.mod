module github.com/anima-run/anima/tools/mutate

go 1.26.0
