package memory

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func load(t testing.TB, path string) (Problem, int64) {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	recs, _ := csv.NewReader(f).ReadAll()
	var lo, up []int64
	var p Problem
	for _, r := range recs[1:] {
		l, _ := strconv.ParseInt(r[1], 10, 64)
		u, _ := strconv.ParseInt(r[2], 10, 64)
		z, _ := strconv.ParseInt(r[3], 10, 64)
		if os.Getenv("REV") != "" {
			l, u = -u, -l
		}
		lo, up = append(lo, l), append(up, u)
		p.Buffers = append(p.Buffers, Buffer{Name: r[0], Size: z})
	}
	p.Conflicts, _ = Intervals(lo, up)
	parts := strings.Split(filepath.Base(path), ".")
	c, _ := strconv.ParseInt(parts[1], 10, 64)
	return p, c
}

func TestExp(t *testing.T) {
	files, _ := filepath.Glob("../../shared/minimalloc/*.csv")
	caps := os.Getenv("CAP")
	for _, f := range files {
		p, capa := load(t, f)
		if caps != "" {
			capa, _ = strconv.ParseInt(caps, 10, 64)
		}
		for _, o := range []order{"TWA", "TAW", "WAT"} {
			for _, g := range []bool{false} {
				start := time.Now()
				n, m, rs := 0, 0, ""
				for _, c := range cores(&p) {
					var cl [][]int32
					if g {
						cl = c.grown()
					} else {
						cl = c.sections()
					}
					s := newSearch(c, c.newFamily(cl), o, capa/c.unit)
					r := s.run(120000, nil, 0)
					n += s.nodes
					m += s.calls
					rs += fmt.Sprint(r, " ")
				}
				fmt.Printf("%s %s grown=%v: %s nodes %d calls %d in %v\n", filepath.Base(f), o, g, rs, n, m, time.Since(start))
			}
		}
	}
}
