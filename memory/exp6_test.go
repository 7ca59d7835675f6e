package memory

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

func TestExp6(t *testing.T) {
	files, _ := filepath.Glob("../../shared/minimalloc/*.csv")
	for _, f := range files {
		p, capa := load(t, f)
		for _, c := range cores(&p) {
			for _, o := range []order{"TWA", "TAW", "WAT", "AWT", "TNB", "NBT", "TBN", "BNT"} {
				s := newSearch(c, c.newFamily(c.sections()), o, capa/c.unit)
				st := time.Now()
				r := s.run(70000, nil, 0)
				d := time.Since(st)
				fmt.Println(filepath.Base(f), c.n, o, r, s.nodes, d, d/time.Duration(s.nodes))
			}
		}
	}
}
