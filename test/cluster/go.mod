module github.com/anima-run/anima/test/cluster

go 1.26.0

require golang.org/x/sys v0.49.0
