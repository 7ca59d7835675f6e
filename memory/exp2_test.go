package memory

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// EXP="A:1048576,D:1039360" ORD="TWA,TAW" LIM=
func TestExp2(t *testing.T) {
	lim, _ := strconv.Atoi(os.Getenv("LIM"))
	for _, e := range strings.Split(os.Getenv("EXP"), ",") {
		name, cs, _ := strings.Cut(e, ":")
		files, _ := filepath.Glob("../../shared/minimalloc/" + name + ".*.csv")
		p, _ := load(t, files[0])
		capa, _ := strconv.ParseInt(cs, 10, 64)
		for _, o := range strings.Split(os.Getenv("ORD"), ",") {
			start := time.Now()
			n, m, rs := 0, 0, ""
			for _, c := range cores(&p) {
				s := newSearch(c, c.newFamily(c.sections()), order(o), capa/c.unit)
				r := s.run(lim, nil, 0)
				n += s.nodes
				m += s.calls
				rs += fmt.Sprint(r, " ")
			}
			fmt.Printf("%s %s: %s nodes %d calls %d in %v\n", e, o, rs, n, m, time.Since(start))
		}
	}
}
