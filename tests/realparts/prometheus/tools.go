//go:build tools

// Package tools names the programs that the tests build.
package tools

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
	_ "github.com/prometheus/alertmanager/cmd/amtool"
)
