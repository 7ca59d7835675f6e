// Package golden runs the golden cases of ../shared (relative to the project's root) in Go tests: it
// finds the folder, reads cases and compares a node's outputs with the expected ones.
//
// Load reads one Case; ForNode all cases of a node. Compare answers with one Result an expected output,
// Refused judges the error of a case that must be refused. The rules are those of ../shared/cases/README.md
// and of compare.py beside it, to which a change here must be carried.
//
// A checkout without ../shared is complete: tests skip what needs it, see Require. The environment
// variable MOEGRAPH_SHARED names another place.
package golden
