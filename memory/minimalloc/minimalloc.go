package minimalloc

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/moegraph/moegraph/memory"
)

// ErrFormat marks input that is no such CSV file.
var ErrFormat = errors.New("invalid minimalloc file")

// File is a problem and the rows it came from.
type File struct {
	IDs     []string // of the buffers, in the order of the rows
	Problem memory.Problem
	header  []string
	rows    [][]string
}

// names maps the columns that are understood to what they are called here.
var names = map[string]string{
	"id": "id", "buffer": "id", "buffer_id": "id",
	"lower": "lower", "start": "lower", "begin": "lower",
	"upper": "upper", "end": "upper",
	"size": "size", "alignment": "alignment", "offset": "offset", "gaps": "gaps",
}

// interval is [lower, upper).
type interval struct{ lower, upper int64 }

// Read parses a file. Errors are of kind ErrFormat and name the line and the column; sizes and
// alignments are left to memory.Solve to judge.
func Read(r io.Reader) (*File, error) {
	f, lines, err := readRows(r)
	if err != nil {
		return nil, err
	}
	column := map[string]int{}
	inclusive := int64(0)
	for i, title := range f.header {
		title = strings.TrimSpace(title)
		name, known := names[title]
		if !known {
			continue
		}
		if _, twice := column[name]; twice {
			return nil, fmt.Errorf("minimalloc: column %q: there are two for %s: %w", title, name, ErrFormat)
		}
		column[name] = i
		if title == "end" {
			inclusive = 1
		}
	}
	for _, name := range []string{"id", "lower", "upper", "size"} {
		if _, ok := column[name]; !ok {
			return nil, fmt.Errorf("minimalloc: column %q: missing among %q: %w", name, f.header, ErrFormat)
		}
	}
	lives := make([][]interval, len(f.rows)) // of each buffer, ascending
	for i, row := range f.rows {
		if lives[i], err = f.add(row, column, inclusive); err != nil {
			return nil, fmt.Errorf("minimalloc: line %d: %w", lines[i], err)
		}
	}
	f.Problem.Conflicts, err = relate(lives)
	if err != nil {
		return nil, fmt.Errorf("minimalloc: %w: %w", ErrFormat, err)
	}
	f.Problem.Spans = spans(lives)
	return f, nil
}

// readRows reads the header and the rows, with the lines on which these begin.
func readRows(r io.Reader) (f *File, lines []int, err error) {
	text := bufio.NewReader(r)
	const mark = "\ufeff" // that some editors put first
	if first, _ := text.Peek(len(mark)); string(first) == mark {
		_, _ = text.Discard(len(mark))
	}
	table := csv.NewReader(text)
	f = &File{}
	for {
		row, err := table.Read()
		switch {
		case err == io.EOF && f.header == nil:
			return nil, nil, fmt.Errorf("minimalloc: no header row: %w", ErrFormat)
		case err == io.EOF:
			return f, lines, nil
		case err != nil:
			return nil, nil, fmt.Errorf("minimalloc: %w: %w", ErrFormat, err)
		case f.header == nil:
			f.header = row
		default:
			line, _ := table.FieldPos(0)
			f.rows, lines = append(f.rows, row), append(lines, line)
		}
	}
}

// add appends the buffer of a row and returns when it is alive.
func (f *File) add(row []string, column map[string]int, inclusive int64) ([]interval, error) {
	number := func(name string, absent int64) (int64, error) {
		i, ok := column[name]
		if optional := name == "offset" || name == "alignment"; !ok || optional && strings.TrimSpace(row[i]) == "" {
			return absent, nil
		}
		x, err := strconv.ParseInt(strings.TrimSpace(row[i]), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("column %q: got %q, want a 64-bit integer: %w", name, row[i], ErrFormat)
		}
		return x, nil
	}
	lower, err1 := number("lower", 0)
	upper, err2 := number("upper", 0)
	size, err3 := number("size", 0)
	alignment, err4 := number("alignment", 1)
	offset, err5 := number("offset", -1)
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return nil, err
	}
	if upper > math.MaxInt64-inclusive {
		return nil, fmt.Errorf("column \"end\": got %d, want less: %w", upper, ErrFormat)
	}
	upper += inclusive
	if upper < lower {
		return nil, fmt.Errorf("lifetime: got [%d, %d), want upper >= lower: %w", lower, upper, ErrFormat)
	}
	b := memory.Buffer{Name: row[column["id"]], Size: size, Align: alignment}
	if offset >= 0 {
		b.Fixed, b.Offset = true, offset
	}
	f.IDs = append(f.IDs, b.Name)
	f.Problem.Buffers = append(f.Problem.Buffers, b)
	life := interval{lower, upper}
	if i, ok := column["gaps"]; ok {
		return cutGaps(life, row[i], inclusive)
	}
	return []interval{life}, nil
}

// cutGaps takes the gaps out of a lifetime.
func cutGaps(life interval, text string, inclusive int64) ([]interval, error) {
	pieces := []interval{life}
	for _, gap := range strings.Fields(text) {
		times, _, window := strings.Cut(gap, "@")
		sign := len(times) - len(strings.TrimPrefix(times, "-")) // times may be below 0
		from, to, ok := strings.Cut(times[sign:], "-")
		lower, err1 := strconv.ParseInt(times[:sign]+from, 10, 64)
		upper, err2 := strconv.ParseInt(to, 10, 64)
		if !ok || err1 != nil || err2 != nil || upper > math.MaxInt64-inclusive || upper+inclusive < lower {
			return nil, fmt.Errorf("column \"gaps\": got %q, want from-to or from-to@low:high: %w", gap, ErrFormat)
		}
		if window {
			continue
		}
		var rest []interval
		for _, p := range pieces {
			left := interval{p.lower, min(p.upper, lower)}
			right := interval{max(p.lower, upper+inclusive), p.upper}
			for _, q := range []interval{left, right} {
				if q.lower < q.upper {
					rest = append(rest, q)
				}
			}
		}
		pieces = rest
	}
	return pieces, nil
}

// relate is memory.Intervals where no buffer has a gap, and a bare relation otherwise: with gaps,
// "ends before" is no order.
func relate(lives [][]interval) (*memory.Conflicts, error) {
	if !slices.ContainsFunc(lives, func(l []interval) bool { return len(l) != 1 }) {
		var lower, upper []int64
		for _, l := range lives {
			lower, upper = append(lower, l[0].lower), append(upper, l[0].upper)
		}
		return memory.Intervals(lower, upper)
	}
	c := memory.NewConflicts(len(lives))
	for i, a := range lives {
		for j, b := range lives[:i] {
			if slices.ContainsFunc(a, func(p interval) bool {
				return slices.ContainsFunc(b, func(q interval) bool { return p.lower < q.upper && q.lower < p.upper })
			}) {
				c.Add(i, j)
			}
		}
	}
	return c, nil
}

func spans(lives [][]interval) []memory.Span {
	out := make([]memory.Span, len(lives))
	for i, l := range lives {
		if len(l) > 0 {
			out[i] = memory.Span{First: l[0].lower, Last: max(l[0].lower, l[len(l)-1].upper-1)}
		}
	}
	return out
}

// Write writes the rows that were read, with the given offsets in a column offset: the file's own if
// it has one, else a new last one.
func (f *File) Write(w io.Writer, offsets []int64) error {
	if len(offsets) != len(f.rows) {
		return fmt.Errorf("minimalloc: got %d offsets, want %d", len(offsets), len(f.rows))
	}
	at := slices.IndexFunc(f.header, func(title string) bool { return strings.TrimSpace(title) == "offset" })
	put := func(row []string, value string) []string {
		row = slices.Clone(row)
		if at < 0 {
			return append(row, value)
		}
		row[at] = value
		return row
	}
	out := csv.NewWriter(w)
	if err := out.Write(put(f.header, "offset")); err != nil {
		return err
	}
	for i, row := range f.rows {
		if err := out.Write(put(row, strconv.FormatInt(offsets[i], 10))); err != nil {
			return err
		}
	}
	out.Flush()
	return out.Error()
}
