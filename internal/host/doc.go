// Package host is the device that every machine has: a Program's streams run as goroutines that wait for
// each other's events, its nodes in plain Go on all cores, out of one arena at the planned offsets. A
// wrong plan gives wrong numbers here too, not a hidden pass.
//
// The main type is Device; importing the package registers it as "host". A replay starts no goroutine and
// allocates nothing: one goroutine a stream and one a core wait between replays.
//
// What a node computes does not depend on the number of cores: loops are cut into pieces by their size
// alone, and no sum crosses pieces except in a fixed order.
package host
