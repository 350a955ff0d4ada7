//go:build tools

// Package tools names the programs that the tests build.
package tools

import (
	_ "sigs.k8s.io/kwok/cmd/kwok"
)
