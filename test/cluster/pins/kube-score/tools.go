//go:build tools

// Package tools pins kube-score. Nothing imports it.
package tools

import _ "github.com/zegl/kube-score/cmd/kube-score"
