package kernels

import (
	"os"
	"path/filepath"
)

// The environment variables that the CUDA device reads, all of them here.
const (
	EnvCache = "MOEGRAPH_CACHE" // folder of compiled kernels; "off": none; default: moegraph below the user's cache folder
	EnvNVRTC = "MOEGRAPH_NVRTC" // the compiler: a libnvrtc.so or the folder that holds one; default: searched for
	EnvEager = "MOEGRAPH_EAGER" // not empty: launch every node by itself instead of a captured graph, and time it
)

// EagerSync is the value of EnvEager that also waits for each node, so that an error names it.
const EagerSync = "sync"

// Env lists the environment variables with what they do.
func Env() [][2]string {
	return [][2]string{
		{EnvCache, `folder of compiled kernels; "off": none; default: moegraph below the user's cache folder`},
		{EnvNVRTC, "libnvrtc.so, or the folder that holds it; default: searched for"},
		{EnvEager, "not empty: launch node by node instead of a captured graph, and time each; \"sync\": and wait for each, so that an error names it"},
	}
}

// NVRTCPath returns what EnvNVRTC holds.
func NVRTCPath() string { return os.Getenv(EnvNVRTC) }

// Eager returns what EnvEager holds: "" for captured graphs.
func Eager() string { return os.Getenv(EnvEager) }

// cacheDir returns the folder of compiled kernels, "" for none.
func cacheDir() string {
	switch dir := os.Getenv(EnvCache); dir {
	case "off":
		return ""
	case "":
		base, err := os.UserCacheDir()
		if err != nil {
			return "" // no home: nothing outlives the process
		}
		return filepath.Join(base, "moegraph")
	default:
		return dir
	}
}
