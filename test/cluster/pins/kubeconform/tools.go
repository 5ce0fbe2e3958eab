//go:build tools

// Package tools pins kubeconform. Nothing imports it.
package tools

import _ "github.com/yannh/kubeconform/cmd/kubeconform"
