//go:build race

package nodes

// raceEnabled: under the race detector a sync.Pool forgets at random, so replays allocate.
const raceEnabled = true
