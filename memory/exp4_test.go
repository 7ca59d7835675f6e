package memory

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

func TestExp4(t *testing.T) {
	files, _ := filepath.Glob("../../shared/minimalloc/*.csv")
	var all time.Duration
	for _, f := range files {
		p, capa := load(t, f)
		p.Capacity = capa
		if s := os.Getenv("CAP"); s != "" {
			p.Capacity, _ = strconv.ParseInt(s, 10, 64)
		}
		st := time.Now()
		plan, err := Solve(p, Options{})
		d := time.Since(st)
		all += d
		if err != nil {
			fmt.Println(filepath.Base(f), err, d)
			continue
		}
		fmt.Println(filepath.Base(f), plan.Peak, plan.LowerBound, plan.Proven, plan.Method, d)
	}
	fmt.Println(all)
}

func TestExp5(t *testing.T) {
	num, _ := strconv.Atoi(os.Getenv("NUM"))
	eq, total := 0, 0
	var all, worst time.Duration
	var sum float64
	for seed := range num {
		d := randomDAG(uint64(seed))
		if len(d.buffers) > 200 {
			continue
		}
		total++
		st := time.Now()
		cf, _ := d.order.Conflicts(d.accesses)
		plan, err := Solve(Problem{Buffers: d.buffers, Conflicts: cf}, Options{})
		e := time.Since(st)
		all += e
		worst = max(worst, e)
		if err != nil {
			t.Fatal(err)
		}
		if plan.Peak == plan.LowerBound {
			eq++
		} else {
			fmt.Println(seed, len(d.buffers), float64(plan.Peak)/float64(plan.LowerBound), plan.Method, e)
		}
		sum += float64(plan.Peak) / float64(plan.LowerBound)
	}
	fmt.Println(eq, total, sum/float64(total), all, worst)
}
