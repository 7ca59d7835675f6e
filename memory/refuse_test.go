package memory

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func pair(i, j int) *Conflicts {
	c := NewConflicts(2)
	c.Add(i, j)
	return c
}

func TestSolve_Refuses(t *testing.T) {
	two := func(a, b Buffer) []Buffer { return []Buffer{a, b} }
	for name, c := range map[string]struct {
		p    Problem
		text string
	}{
		"size":               {Problem{Buffers: []Buffer{{Name: "x", Size: -1}}}, `buffer 0 "x": size: got -1`},
		"alignment":          {Problem{Buffers: []Buffer{{Size: 1, Align: 3}}}, "power of two"},
		"negative alignment": {Problem{Buffers: []Buffer{{Size: 1, Align: math.MinInt64}}}, "power of two"},
		"fixed":              {Problem{Buffers: []Buffer{{Size: 1, Fixed: true, Offset: -4}}}, "fixed offset"},
		"misplaced":          {Problem{Buffers: []Buffer{{Size: 1, Align: 8, Fixed: true, Offset: 4}}}, "multiple of 8"},
		"far":                {Problem{Buffers: []Buffer{{Size: 9, Fixed: true, Offset: math.MaxInt64}}}, "exceeds int64"},
		"sum":                {Problem{Buffers: two(Buffer{Size: math.MaxInt64}, Buffer{Size: 1})}, "exceeds int64"},
		"padding":            {Problem{Buffers: []Buffer{{Size: math.MaxInt64, Align: 256}}}, "exceeds int64"},
		"overlap": {Problem{Buffers: two(Buffer{Size: 8, Fixed: true}, Buffer{Size: 8, Fixed: true, Offset: 4}),
			Conflicts: pair(0, 1)}, "overlaps"},
		"length":   {Problem{Buffers: []Buffer{{Size: 1}}, Conflicts: NewConflicts(2)}, "got 2 buffers, want 1"},
		"index":    {Problem{Buffers: two(Buffer{}, Buffer{}), Conflicts: pair(0, 2)}, "conflict (0, 2)"},
		"spans":    {Problem{Buffers: []Buffer{{Size: 1}}, Spans: make([]Span, 3)}, "spans: got 3"},
		"span":     {Problem{Buffers: []Buffer{{Size: 1}}, Spans: []Span{{2, 1}}}, "first <= last"},
		"capacity": {Problem{Capacity: -1}, "capacity: got -1"},
	} {
		_, err := Solve(c.p, Options{})
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want ErrInvalid with %q", name, err, c.text)
		}
	}
}

func TestSolve_Capacity(t *testing.T) {
	p := Problem{Buffers: []Buffer{{Size: 60}, {Size: 50}}, Conflicts: pair(0, 1), Capacity: 100}
	_, err := Solve(p, Options{})
	var e *CapacityError
	if !errors.As(err, &e) || !errors.Is(err, ErrCapacity) || e.LowerBound != 110 || e.Best.Peak != 110 {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(err.Error(), "110") || !strings.Contains(err.Error(), "impossible") {
		t.Errorf("the message must hold the bound: %v", err)
	}
	p.Capacity = 110
	if plan, err := Solve(p, Options{}); err != nil || !plan.Proven {
		t.Errorf("got %+v, %v", plan, err)
	}
}

func TestSolve_Edges(t *testing.T) {
	if plan, err := Solve(Problem{}, Options{}); err != nil || plan.Peak != 0 || !plan.Proven {
		t.Errorf("nothing: got %+v, %v", plan, err)
	}
	zero := Problem{Buffers: []Buffer{{}, {}, {Fixed: true, Offset: 64}}, Conflicts: NewConflicts(3)}
	zero.Conflicts.Add(0, 1)
	zero.Conflicts.Add(1, 2)
	if plan, err := Solve(zero, Options{}); err != nil || plan.Peak != 64 || plan.Offsets[1] != 0 {
		t.Errorf("zero sizes: got %+v, %v", plan, err)
	}
	for _, size := range []int64{1 << 31, 1 << 40, 1 << 60} {
		p := Problem{Buffers: []Buffer{{Size: size, Align: 256}, {Size: size, Align: 256}, {Size: size}},
			Conflicts: NewConflicts(3)}
		p.Conflicts.Add(0, 1)
		p.Conflicts.Add(1, 2)
		plan, err := Solve(p, Options{})
		if err != nil || plan.Peak != 2*size || !plan.Proven || plan.Offsets[0] != plan.Offsets[2] {
			t.Errorf("size %d: got %+v, %v", size, plan, err)
		}
	}
	// A free buffer goes below a fixed one if it fits, else above.
	for size, want := range map[int64]int64{16: 0, 17: 32} {
		p := Problem{Buffers: []Buffer{{Size: 8, Fixed: true, Offset: 16}, {Size: size, Align: 16}},
			Conflicts: pair(0, 1)}
		if plan, err := Solve(p, Options{}); err != nil || plan.Offsets[1] != want {
			t.Errorf("size %d: got %+v, %v, want offset %d", size, plan, err, want)
		}
	}
}

func TestConflicts_Refuses(t *testing.T) {
	for name, f := range map[string]func() error{
		"cycle":    func() error { _, err := Order{2, [][2]int{{0, 1}, {1, 0}}}.Conflicts(nil); return err },
		"self":     func() error { _, err := Order{1, [][2]int{{0, 0}}}.Conflicts(nil); return err },
		"edge":     func() error { _, err := Order{1, [][2]int{{0, 1}}}.Conflicts(nil); return err },
		"access":   func() error { _, err := Order{Nodes: 1}.Conflicts([][]int{{1}}); return err },
		"nodes":    func() error { _, err := Order{Nodes: -1}.Conflicts(nil); return err },
		"lengths":  func() error { _, err := Intervals([]int64{1}, nil); return err },
		"backward": func() error { _, err := Intervals([]int64{1}, []int64{0}); return err },
	} {
		if err := f(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: got %v, want ErrInvalid", name, err)
		}
	}
	c := NewConflicts(-1)
	if c.Len() != 0 || c.Has(0, 0) || c.Before(-1, 3) {
		t.Error("an empty relation must be empty")
	}
}
