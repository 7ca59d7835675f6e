package memory

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestExp3(t *testing.T) {
	lim, _ := strconv.Atoi(os.Getenv("LIM"))
	num, _ := strconv.Atoi(os.Getenv("NUM"))
	orders := strings.Split(os.Getenv("ORD"), ",")
	wins := make([]int, len(orders))
	nodes := make([]int, len(orders))
	times := make([]time.Duration, len(orders))
	greedy, any, total, imp := 0, 0, 0, 0
	var tb, tg time.Duration
	var bufs int
	for seed := range num {
		d := randomDAG(uint64(seed))
		if len(d.buffers) > 200 {
			continue
		}
		total++
		bufs += len(d.buffers)
		cf, err := d.order.Conflicts(d.accesses)
		if err != nil {
			t.Fatal(err)
		}
		p := Problem{Buffers: d.buffers, Conflicts: cf}
		var lb int64
		var best *core
		var bestAnti []int32
		for _, c := range cores(&p) {
			s := time.Now()
			a := c.antichain()
			tb += time.Since(s)
			for _, i := range a {
				for _, j := range a {
					if i != j && !has(c.rows[i], j) {
						t.Fatal("no clique")
					}
				}
			}
			if w := c.weight(a) * c.unit; w > lb {
				lb, best, bestAnti = w, c, a
			}
		}
		s := time.Now()
		g := best.greedy()
		tg += time.Since(s)
		if g.peak < lb/best.unit {
			t.Fatal("below")
		}
		if g.peak == lb/best.unit {
			greedy++
			any++
			continue
		}
		fam := best.newFamily(best.grown(bestAnti))
		ok := false
		for x, o := range orders {
			s := newSearch(best, fam, order(o), lb/best.unit)
			st := time.Now()
			r := s.run(lim, nil, 0)
			if r == found {
				wins[x]++
				ok = true
			}
			if r == impossible {
				imp++
			}
			nodes[x] += s.nodes
			times[x] += time.Since(st)
		}
		if ok {
			any++
		} else {
			fmt.Println("unsolved seed", seed, "n", best.n, "greedy", float64(g.peak)*float64(best.unit)/float64(lb), "cliques", len(fam.members))
		}
	}
	fmt.Println("total", total, "bufs", bufs/total, "greedy", greedy, "any", any, "impossible", imp, "bound", tb/time.Duration(total), "greedy", tg/time.Duration(total))
	for x, o := range orders {
		fmt.Println(o, wins[x], nodes[x], times[x])
	}
}
