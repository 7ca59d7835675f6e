//go:build !linux

package host

func machineBytes() int64 { return maxBytes }
