//go:build race

package cudadev_test

const raceEnabled = true
