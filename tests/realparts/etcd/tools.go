//go:build tools

// Package tools names the programs that the tests build.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)
