module github.com/anima-run/anima/test

go 1.26.0

require (
	github.com/anima-run/anima/tools/image v0.0.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/anima-run/anima/tools v0.0.0
	github.com/google/go-containerregistry v0.22.1 // indirect
	github.com/klauspost/compress v1.19.2 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	golang.org/x/sync v0.22.0 // indirect
)

replace github.com/anima-run/anima/tools/image => ../tools/image

replace github.com/anima-run/anima/tools => ../tools
