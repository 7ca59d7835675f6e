package minimalloc

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/moegraph/moegraph/memory"
)

// FuzzRead: whatever the bytes, Read gives a problem or an error of its kind, Solve a plan or an error, and what Write
// writes reads back with the offsets fixed.
func FuzzRead(f *testing.F) {
	for _, text := range []string{
		"id,lower,upper,size\na,0,3,4\nb,2,9,4\n", "buffer,start,end,size,alignment,gaps\na,0,3,4,8,1-2\nb,2,9,4,,\n",
		"id,lower,upper,size,offset\na,0,9223372036854775807,9223372036854775807,-1\n", "\ufeffid,begin,end,size\n\"x,y\",0,9223372036854775807,1\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		file, err := Read(strings.NewReader(text))
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("got %v, want ErrFormat", err)
			}
			return
		}
		if len(file.IDs) > 50 {
			return
		}
		plan, err := memory.Solve(file.Problem, memory.Options{Nodes: 100})
		if err != nil {
			if !errors.Is(err, memory.ErrInvalid) {
				t.Fatalf("got %v, want ErrInvalid", err)
			}
			return
		}
		var b strings.Builder
		if err := file.Write(&b, plan.Offsets); err != nil {
			t.Fatal(err)
		}
		again, err := Read(strings.NewReader(b.String()))
		if err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
		fixed, err := memory.Solve(again.Problem, memory.Options{})
		if err != nil || !slices.Equal(fixed.Offsets, plan.Offsets) {
			t.Fatalf("read back: %v\n%s", err, b.String())
		}
	})
}
