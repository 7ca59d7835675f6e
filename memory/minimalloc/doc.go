// Package minimalloc reads and writes the CSV files of google/minimalloc, the usual benchmark of
// offset planners: one buffer a row, alive in an interval of time.
//
// The first row names the columns, in any order:
//
//	id          also buffer, buffer_id
//	lower       also start, begin: first time at which the buffer is alive
//	upper       first time at which it is not any more; a column end holds the last time at which it is
//	size        bytes
//	alignment   optional, a power of two; empty: 1
//	offset      optional: the buffer is fixed there; empty or below 0: it is free
//	gaps        optional: "from-to from-to ...", times inside the lifetime at which it is not alive;
//	            to is as in the column upper or end. A gap with a window ("from-to@low:high": only
//	            these bytes are alive) is read as no gap, which is safe and may cost bytes
//	hint        optional, and ignored, like every other column
//
// Read gives a memory.Problem, Write the same rows with a column offset.
package minimalloc
