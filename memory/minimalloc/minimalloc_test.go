package minimalloc

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moegraph/moegraph/memory"
)

func TestRead(t *testing.T) {
	const want = "size,id,upper,lower,offset\n4,b1,3,0,8\n4,b2,9,3,8\n4,b3,9,0,4\n4,b4,21,9,4\n4,b5,21,0,0\n"
	f, err := Read(strings.NewReader("size,id,upper,lower\n4,b1,3,0\n4,b2,9,3\n4,b3,9,0\n4,b4,21,9\n4,b5,21,0\n"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"b1", "b2", "b3", "b4", "b5"}, f.IDs); d != "" {
		t.Error(d)
	}
	if f.Problem.Conflicts.Has(0, 1) || !f.Problem.Conflicts.Has(1, 2) {
		t.Error("lifetimes must be half-open")
	}
	plan, err := memory.Solve(f.Problem, memory.Options{})
	if err != nil || plan.Peak != 12 || !plan.Proven {
		t.Errorf("got plan %+v, error %v, want a proven peak of 12", plan, err)
	}
	var b strings.Builder
	if err := f.Write(&b, []int64{8, 8, 4, 4, 0}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
	again, err := Read(strings.NewReader(b.String()))
	if err != nil || !again.Problem.Buffers[0].Fixed || again.Problem.Buffers[0].Offset != 8 {
		t.Errorf("an offset column must fix the buffers, error %v", err)
	}
}

func TestRead_Variants(t *testing.T) {
	for _, c := range []struct {
		name, text string
		conflict   bool // of the two buffers
	}{
		{"upper is exclusive", "buffer,start,upper,size\na,0,3,1\nb,3,5,1\n", false},
		{"end is inclusive", "buffer_id,begin,end,size\na,0,3,1\nb,3,5,1\n", true},
		{"alignment, hint and others", "id,lower,upper,size,alignment,hint,note\na,0,3,1,8,-1,x\nb,2,5,1,4,0,y\n", true},
		{"gap", "id,lower,upper,size,gaps\na,0,9,1,3-6\nb,3,6,1,\n", false},
		{"gap too short", "id,lower,upper,size,gaps\na,0,9,1,3-5\nb,3,6,1,\n", true},
		{"gap with an inclusive end", "id,start,end,size,gaps\na,0,9,1,1-2 3-5\nb,3,5,1,\n", false},
		{"window is no gap", "id,lower,upper,size,gaps\na,0,9,1,3-6@0:1\nb,3,6,1,\n", true},
		{"no alignment", "id,lower,upper,size,alignment\na,0,9,1,\nb,3,6,1,8\n", true},
		{"gap below 0", "id,lower,upper,size,gaps\na,-9,9,1,-6--3 -2-0\nb,-6,-3,1,\n", false},
		{"a mark before quotes", "\ufeff\"id\",lower,upper,size\na,0,9,1\nb,3,6,1\n", true},
		{"free offset", "id,lower,upper,size,offset\na,0,9,1,\nb,3,6,1,-1\n", true},
	} {
		f, err := Read(strings.NewReader(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := f.Problem.Conflicts.Has(0, 1); got != c.conflict {
			t.Errorf("%s: conflict: got %v, want %v", c.name, got, c.conflict)
		}
		if _, err := memory.Solve(f.Problem, memory.Options{}); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestRead_Refuses(t *testing.T) {
	for _, text := range []string{
		"",
		"id,lower,upper\na,0,1\n",
		"id,lower,start,upper,size\na,0,0,1,1\n",
		"id,lower,upper,size\na,0,x,1\n",
		"id,lower,upper,size\na,0,1\n",
		"id,lower,upper,size\na,3,1,1\n",
		"id,lower,upper,size\na,0,1,99999999999999999999\n",
		"id,lower,upper,size,gaps\na,0,9,1,3\n",
		"id,lower,upper,size,gaps\na,0,9,1,6-3\n",
		"id,lower,upper,size,gaps\na,0,9,1,--3\n",
		"id,lower,end,size\na,0,9223372036854775807,1\n",
		"id,lower,end,size,gaps\na,0,9,1,3-9223372036854775807\n",
	} {
		if _, err := Read(strings.NewReader(text)); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: got %v, want ErrFormat", text, err)
		}
	}
	const blank = "\n\nid,lower,upper,size\n\n\"a\nb\",0,1,1\n\nc,0,x,1\n"
	if _, err := Read(strings.NewReader(blank)); err == nil || !strings.Contains(err.Error(), "line 8: ") {
		t.Errorf("got %v, want line 8 named", err)
	}
	f, err := Read(strings.NewReader("id,lower,upper,size\na,0,1,1\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write(&strings.Builder{}, nil); err == nil {
		t.Error("want an error for too few offsets")
	}
}
