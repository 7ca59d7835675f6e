//go:build !race

package memory

// Raced is true where the race detector slows everything down about twentyfold: tests then do less.
const Raced = false
